"""Timeouts that several ranks calculate together, over a real process group."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.fork_server import fork_server
from worker_client import RankMonitorClientError, all_reduce_max

SCRIPT = """
import json, sys, time
import torch.distributed as dist
from pathlib import Path
from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient, RankMonitorClientError

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
served = FakeSupervisor(folder / f"{rank}.sock", sections=("a", "b") if rank else ("b", "a"))
served.answers = False
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
client = RankMonitorClient()
told = {"before": None}
client.init_workload_monitoring()
if rank == 0:
    served.welcome(served.client())
    served.wait(lambda: client.cfg.rank_section_timeouts)
told["one rank not welcome"] = client.calculate_and_set_section_timeouts(["a"])
if rank == 1:
    served.welcome(served.client())
    served.wait(lambda: client.cfg.rank_section_timeouts)
told["rank"] = client.rank_info.global_rank
told["not ready"] = client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
if rank == 1:
    client.send_heartbeat(); client.send_heartbeat()
    client.start_section("a"); client.end_section("a")
told["ready on one"] = client.calculate_and_set_hb_timeouts()
told["sections"] = client.calculate_and_set_section_timeouts(["a"])
told["state"] = client.state_dict()
try:
    client.calculate_and_set_section_timeouts(["a" if rank else "b"])
except RankMonitorClientError as error:
    told["disagree"] = str(error)
client.shutdown_workload_monitoring()
served.stop()
dist.destroy_process_group()
print(json.dumps(told))
"""


def test_all_ranks_get_the_same_from_whoever_measured(tmp_path: Path, rank_environment: Path):
    torch = fork_server("torch.distributed")
    variables = [
        os.environ | {"HOLDFAST_SOCKET": str(tmp_path / f"{rank}.sock"), "WORLD_SIZE": "2", "RANK": "7"}
        for rank in range(2)
    ]
    processes = [
        torch.start(SCRIPT, str(rank), str(tmp_path), environment=each, folder=Path(__file__).parents[2])
        for rank, each in enumerate(variables)
    ]
    told = [json.loads(process.communicate(timeout=90)[0]) for process in processes]
    assert [each["rank"] for each in told] == [0, 1]
    assert [each["one rank not welcome"] for each in told] == [False, False]
    assert [each["not ready"] for each in told] == [False, False]
    assert [each["ready on one"] for each in told] == [True, True]
    assert [each["sections"] for each in told] == [True, True]
    assert told[0]["state"] == told[1]["state"]
    assert told[0]["state"]["current_timeouts"]["section"]["calculated_sections"] == ["a"]
    assert all("do not select the same sections" in each["disagree"] for each in told)


def test_one_rank_needs_no_process_group(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert all_reduce_max.maxima([1.5, 0.0]) == [1.5, 0.0]


def test_several_ranks_without_a_process_group_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RankMonitorClientError, match="is not initialised"):
        all_reduce_max.maxima([1.0])


@pytest.mark.parametrize(
    ("bound", "current", "reserved", "expected"),
    [
        ("cuda:2", 0, {}, 2),
        (None, 3, {3: 9}, 3),
        (None, 0, {1: 9}, 1),  # the script never called set_device: all its tensors lie on cuda:LOCAL_RANK
        (None, 0, {0: 9, 1: 9}, 0),  # a rank that has several GPUs for itself
        (None, 0, {}, 0),
    ],
)
def test_the_device_is_that_of_the_group(
    monkeypatch: pytest.MonkeyPatch, bound: str | None, current: int, reserved: dict[int, int], expected: int
):
    """Two ranks on one GPU, or a tensor on another than the group's, would be an error of the backend."""
    import torch
    from torch import distributed

    device = torch.device(bound) if bound else None
    seen: list[torch.device] = []
    make = torch.tensor

    def tensor(values: list[float], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        seen.append(device)
        return make(values, dtype=dtype)

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(distributed, "group", SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=device)))
    for name, value in {"is_initialized": True, "get_rank": 1, "get_backend_config": "cuda:nccl"}.items():
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    monkeypatch.setattr(distributed, "all_reduce", Mock())
    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "memory_reserved", Counter(reserved).__getitem__)
    assert all_reduce_max.maxima([1.5]) == [1.5]
    assert seen == [torch.device("cuda", expected)]
