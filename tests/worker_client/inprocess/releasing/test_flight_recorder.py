"""When is torch's flight recorder dumped, and can its dump keep a rank from the abort? By way of the abort."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.worker_client.inprocess.fake_torch import STACKS, STATE, TRACE, Backend, Torch
from worker_client.inprocess import abort
from worker_client.inprocess.abort import (
    AbortTorchDistributed,
)
from worker_client.inprocess.releasing import flight_recorder


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
