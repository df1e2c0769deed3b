"""What do the aborts ask of torch, Transformer Engine and checkpoint libraries? Fakes replace these by name."""

from __future__ import annotations

import logging
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from tests.worker_client.inprocess.fake_torch import STATE, Backend, Group, OldBackend, Torch
from worker_client.inprocess import abort
from worker_client.inprocess.abort import (
    AbortPersistentCheckpointProcesses,
    AbortTorchDistributed,
    AbortTransformerEngine,
    clear_after,
    release_again,
)
from worker_client.inprocess.compose import Compose
from worker_client.inprocess.state import FrozenState


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


@pytest.mark.parametrize("why", ["no such group", "no more threads"])
def test_a_destroy_that_fails_is_logged_and_leaves_no_groups(
    torch: Torch, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
):
    """Otherwise no later `init_process_group` would succeed."""

    def fail(*_: object) -> None:
        raise RuntimeError(why)

    torch.groups[Group(None)] = None
    if why == "no more threads":
        monkeypatch.setattr(threading.Thread, "start", fail)
    else:
        setattr(torch.distributed, "destroy_process_group", fail)  # noqa: B010  # a module has no such attribute by its type
    assert AbortTorchDistributed()(STATE) is STATE
    assert f"cannot destroy the process groups: {why}" in warnings.text
    assert torch.groups == {}
    assert not torch.is_initialized


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


def test_a_group_that_never_became_the_default_one_leaves_no_name_behind(torch: Torch):
    """torch has it in its tables by then, and never destroys it: the next group could not have its name."""
    own = AbortTorchDistributed()
    torch.is_initialized = False
    own(STATE)
    torch.add_group("unfinished", Backend)
    torch.c10d._world.pg_names["unfinished"] = "0"
    clear_after(own)
    assert (torch.groups, torch.c10d._world.pg_names) == ({}, {})
    assert "unregister" in torch.calls


def test_each_abort_takes_back_what_torch_puts_before_every_line_of_an_error(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
):
    """Two iterations; the script's own hook stays."""

    def init_process_group() -> None:
        old_hook = sys.excepthook

        def _distributed_excepthook(*error: Any) -> None:  # noqa: ANN401
            old_hook(*error)

        sys.excepthook = _distributed_excepthook

    def of_the_script(*error: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", of_the_script)
    for _ in range(2):
        own = AbortTorchDistributed()
        init_process_group()
        sys.excepthook.__qualname__ = "init_process_group.<locals>._distributed_excepthook"
        own(STATE)
        clear_after(own)
        assert sys.excepthook is of_the_script


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
