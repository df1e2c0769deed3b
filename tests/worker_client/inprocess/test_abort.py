"""What do the aborts ask of torch, Transformer Engine and checkpoint libraries? Fakes replace these by name."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worker_client.inprocess import abort
from worker_client.inprocess.abort import (
    AbortPersistentCheckpointProcesses,
    AbortTorchDistributed,
    AbortTransformerEngine,
    clear_after,
    release_again,
)
from worker_client.inprocess.compose import Compose
from worker_client.inprocess.releasing import flight_recorder
from worker_client.inprocess.state import FrozenState, State

STATE = State(1, 4, active_rank=1, active_world_size=4, iteration=3).freeze()
TRACE, STACKS = b"a trace", b"a trace with stacks"


class Backend:
    """A ProcessGroupNCCL."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.abort = run


class OldBackend:
    """A backend of torch before 2.6."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._shutdown = run


class Group:
    """A process group with a backend for CUDA, or without one."""

    def __init__(self, backend: object | None) -> None:
        self.backend = backend

    def _get_backend(self, device: str) -> object:
        if self.backend is None:
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self.backend


class Torch:
    """The modules of torch that an abort uses, and its calls in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.is_initialized = True
        self.may_give_stacks = threading.Event()
        self.may_give_stacks.set()
        self.torch, self.distributed = ModuleType("torch"), ModuleType("torch.distributed")
        self.c10d: Any = ModuleType("distributed_c10d")
        self.bindings = ModuleType("torch._C._distributed_c10d")
        self._set(self.torch, __version__="2.13.0+cpu", device=str, distributed=self.distributed)
        self._set(
            self.distributed,
            is_available=lambda: True,
            is_initialized=lambda: self.is_initialized,
            destroy_process_group=lambda: self.calls.append("destroy"),
            distributed_c10d=self.c10d,
        )
        self.groups: dict[Group, object] = {}
        world = type("World", (), {"pg_map": self.groups})()
        self._set(self.c10d, ProcessGroupNCCL=(Backend, OldBackend), _world=world)
        for name, module in {
            "torch": self.torch,
            "torch.distributed": self.distributed,
            "torch.distributed.distributed_c10d": self.c10d,
            "torch._C._distributed_c10d": self.bindings,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)

    def add_group(self, name: str, kind: type[Backend | OldBackend], run: Callable[[], object] | None = None) -> None:
        def noted() -> None:
            if run is not None:
                run()
            self.calls.append(name)

        self.groups[Group(kind(noted))] = None

    def offer_dump(self, name: str) -> None:
        def dump(collectives: bool, stacks: bool, only_active: bool) -> bytes:
            assert collectives
            assert not only_active
            self.calls.append(name)
            if stacks and not self.may_give_stacks.wait(10):
                raise RuntimeError("no stacks")
            return STACKS if stacks else TRACE

        self._set(self.bindings, **{name: dump})

    def _set(self, module: ModuleType, **values: object) -> None:
        for name, value in values.items():
            setattr(module, name, value)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    for name in (
        "HOLDFAST_FR_TRACE_PATH",
        "NVRX_FR_TRACE_PATH",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_FR_BUFFER_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(abort, "ABORT_TIMEOUT_S", 5.0)
    return Torch(monkeypatch)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="holdfast")
    return caplog


# --- torch.distributed ---------------------------------------------------------------------------------------------


def test_nothing_is_done_without_process_groups(torch: Torch, monkeypatch: pytest.MonkeyPatch):
    torch.is_initialized = False
    assert AbortTorchDistributed()(STATE) is STATE
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert AbortTorchDistributed()(STATE) is STATE
    assert torch.calls == []
    assert "torch.distributed" not in sys.modules


def test_nccl_groups_are_aborted_by_what_their_version_offers_and_then_all_are_destroyed(torch: Torch):
    torch.add_group("new", Backend)
    torch.add_group("old", OldBackend)
    torch.groups[Group(None)] = None
    torch.groups[Group(object())] = None  # a backend of another kind
    assert AbortTorchDistributed()(STATE) is STATE
    assert sorted(torch.calls[:2]) == ["new", "old"]
    assert torch.calls[2:] == ["destroy"]


def test_nccl_groups_are_aborted_at_the_same_time(torch: Torch):
    """NCCL's abort may wait for the abort of another group."""
    barrier = threading.Barrier(3, timeout=5)
    for name in ("a", "b", "c"):
        torch.add_group(name, Backend, barrier.wait)
    AbortTorchDistributed()(STATE)
    assert sorted(torch.calls) == ["a", "b", "c", "destroy"]


def test_an_abort_that_fails_or_hangs_does_not_keep_the_others(
    torch: Torch, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(abort, "ABORT_TIMEOUT_S", 0.1)
    may_end = threading.Event()

    def fail() -> None:
        raise RuntimeError("NCCL is unwell")

    torch.add_group("fails", Backend, fail)
    torch.add_group("hangs", Backend, may_end.wait)
    torch.add_group("works", Backend)
    try:
        assert AbortTorchDistributed()(STATE) is STATE
        assert torch.calls == ["works", "destroy"]
    finally:
        may_end.set()
    assert "NCCL is unwell" in warnings.text
    assert "within 0.1 s" in warnings.text


def test_an_error_of_destroy_is_logged(torch: Torch, warnings: pytest.LogCaptureFixture):
    def fail() -> None:
        raise ValueError("no such group")

    setattr(torch.distributed, "destroy_process_group", fail)  # noqa: B010  # a module has no such attribute by its type
    assert AbortTorchDistributed()(STATE) is STATE
    assert "cannot destroy the process groups: no such group" in warnings.text


def test_a_torch_that_has_moved_its_list_of_groups_is_still_destroyed(torch: Torch, warnings: pytest.LogCaptureFixture):
    del torch.c10d.__dict__["_world"]
    AbortTorchDistributed()(STATE)
    assert torch.calls == ["destroy"]
    assert "cannot list the process groups" in warnings.text


def test_what_the_function_made_after_the_abort_goes_when_it_has_ended(torch: Torch):
    """Otherwise the next `init_process_group` would find a group, or be the second of its name on this rank only."""
    own = AbortTorchDistributed()
    torch.is_initialized = False
    own(STATE)
    torch.is_initialized, torch.c10d._world.group_count = True, 1
    clear_after(Compose(AbortTransformerEngine(), own))
    assert torch.calls == ["destroy"]
    assert torch.c10d._world.group_count == 0


def test_a_group_that_was_never_finished_is_forgotten(torch: Torch):
    own = AbortTorchDistributed()
    torch.is_initialized, torch.c10d._world.group_count = False, 1
    own(STATE)
    clear_after(own)
    assert torch.calls == []
    assert torch.c10d._world.group_count == 0


def test_an_abort_of_another_kind_is_not_followed_up(torch: Torch):
    """A user's class that does not call ours, and one that has not run."""

    class Own(AbortTorchDistributed):
        def __call__(self, state: FrozenState) -> FrozenState:
            return state

    for each in (Own(), AbortTorchDistributed(), AbortTransformerEngine()):
        torch.c10d._world.group_count = 1
        if isinstance(each, Own):
            each(STATE)
        release_again(each, STATE)
        clear_after(each)
        assert torch.c10d._world.group_count == 1
    assert torch.calls == []


# --- the flight recorder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["HOLDFAST_FR_TRACE_PATH", "NVRX_FR_TRACE_PATH", None])
def test_the_recorder_is_dumped_before_anything_is_aborted(
    torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
):
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path))
    torch.add_group("abort", Backend)
    torch.offer_dump("_dump_nccl_trace")
    torch.offer_dump("_dump_fr_trace")
    AbortTorchDistributed(None if variable else str(tmp_path))(STATE)
    assert torch.calls == ["_dump_nccl_trace", "_dump_nccl_trace", "abort", "destroy"]
    assert (tmp_path / "iter_3/nccl_trace_rank_1").read_bytes() == STACKS
    assert len(list(tmp_path.rglob("*"))) == 2


def test_stacks_that_take_too_long_are_left_out(torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first lookup of all symbols takes torch seconds."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "1")
    monkeypatch.setattr(flight_recorder, "DUMP_TIMEOUT_S", 0.2)
    torch.offer_dump("_dump_fr_trace")
    torch.may_give_stacks.clear()
    try:
        AbortTorchDistributed(str(tmp_path))(STATE)
        assert torch.calls[-1] == "destroy"
        assert (tmp_path / "iter_3/nccl_trace_rank_1").read_bytes() == TRACE
    finally:
        torch.may_give_stacks.set()


@pytest.mark.parametrize(
    ("version", "sizes", "is_dumped"),
    [
        ("2.13.0", {}, False),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "0"}, False),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "1"}, True),
        ("2.8.0a0+git", {"TORCH_FR_BUFFER_SIZE": "1"}, True),
        ("2.7.1", {"TORCH_FR_BUFFER_SIZE": "1"}, False),
        ("2.7.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "1"}, True),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_BUFFER_SIZE": "1"}, True),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "many"}, False),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "many", "TORCH_FR_BUFFER_SIZE": "1"}, True),
    ],
)
def test_only_a_recorder_that_is_on_is_dumped(
    torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, sizes: dict[str, str], is_dumped: bool
):
    setattr(torch.torch, "__version__", version)  # noqa: B010  # a module has no such attribute by its type
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    torch.offer_dump("_dump_fr_trace")
    AbortTorchDistributed(str(tmp_path))(STATE)
    assert list(tmp_path.rglob("nccl_trace_rank_*")) == [tmp_path / "iter_3/nccl_trace_rank_1"] * is_dumped
    assert torch.calls[-1] == "destroy"


def test_a_dump_that_cannot_be_written_does_not_keep_the_groups(
    torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "1")
    (tmp_path / "file").write_text("")
    torch.offer_dump("_dump_fr_trace")
    AbortTorchDistributed(str(tmp_path / "file"))(STATE)
    assert torch.calls == ["_dump_fr_trace", "destroy"]
    assert "cannot dump the flight recorder" in warnings.text


# --- Transformer Engine, checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("fp8", ["transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8"])
def test_transformer_engine_gives_up_its_buffers_and_its_fp8_state(monkeypatch: pytest.MonkeyPatch, fp8: str):
    calls: list[str] = []
    engine: Any = ModuleType("transformer_engine.pytorch")
    engine.destroy_ub = lambda: calls.append("buffers")
    state: Any = ModuleType(fp8)
    state.FP8GlobalStateManager = type("Manager", (), {"reset": staticmethod(lambda: calls.append("fp8"))})
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    monkeypatch.setitem(sys.modules, fp8, state)
    assert AbortTransformerEngine()(STATE) is STATE
    assert calls == ["buffers", "fp8"]


def test_an_error_of_transformer_engine_is_logged(monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture):
    def fail() -> None:
        raise RuntimeError("no buffers")

    engine: Any = ModuleType("transformer_engine.pytorch")
    engine.destroy_ub = fail
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    assert AbortTransformerEngine()(STATE) is STATE
    assert "no buffers" in warnings.text


def test_all_queues_of_checkpoints_are_closed_with_abort(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
):
    closed: list[tuple[str, bool]] = []

    class AsyncCallsQueue:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self, abort: bool = False) -> None:
            closed.append((self.name, abort))
            if self.name == "fails":
                raise OSError("gone")

    module: Any = ModuleType("core")
    module.AsyncCallsQueue = AsyncCallsQueue
    monkeypatch.setitem(sys.modules, "nvidia_resiliency_ext.checkpointing.async_ckpt.core", module)
    kept = [AsyncCallsQueue("fails"), AsyncCallsQueue("works")]
    assert AbortPersistentCheckpointProcesses()(STATE) is STATE
    assert sorted(closed) == [("fails", True), ("works", True)]
    assert "gone" in warnings.text
    assert len(kept) == 2


def test_libraries_that_are_not_loaded_are_not_loaded_for_it():
    before = set(sys.modules)
    assert AbortTransformerEngine()(STATE) is STATE
    assert AbortPersistentCheckpointProcesses()(STATE) is STATE
    assert set(sys.modules) == before
