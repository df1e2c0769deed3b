"""Jobs on a real GPU: what does the spawner not touch, and how long is memory awaited (spec rows 1, 2, 7)?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import assert_nothing_left

if TYPE_CHECKING:
    from tests.gpu.conftest import Start

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

FORKED = """
import json, os
import torch
first = torch.cuda.is_initialized()
total = float(torch.ones(1000, device="cuda").sum())
with open(f"/proc/{os.getppid()}/maps") as file:
    parents = file.read()
opened = [os.readlink(f"/proc/{os.getppid()}/fd/{fd}") for fd in os.listdir(f"/proc/{os.getppid()}/fd")]
told = json.dumps([first, total, "libcuda.so" in parents, [each for each in opened if "nvidia" in each]])
os.write(1, f"{told}\\n".encode())  # at once: print() writes a line's end apart
"""
KILLED = """
import os, signal, time
import torch
cycle = os.environ["TORCHELASTIC_RESTART_COUNT"]
if cycle == "0":
    free, _ = torch.cuda.mem_get_info()
    block = torch.empty(min(40 << 30, free // 2), dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    print("killed at", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
torch.ones(1, device="cuda").sum().item()
print("again at", began, "first kernel at", time.monotonic(), flush=True)
"""


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


def test_the_spawner_has_no_cuda_context_and_each_fork_has_a_first_kernel(start: Start, tmp_path: Path) -> None:
    launch = start("--preload", "torch", "--nproc-per-node", "2", script(tmp_path, FORKED))
    assert launch.wait(200) == 0, launch.stderr_text()
    lines = [json.loads(line) for line in launch.stdout_text().splitlines() if line.startswith("[")]
    assert len(lines) == 2
    for initialised, total, _, opened in lines:
        assert not initialised
        assert total == 1000.0
        assert opened == [], "the spawner has a device of the driver open"


def test_a_killed_ranks_memory_is_waited_for_and_no_longer(start: Start, tmp_path: Path) -> None:
    launch = start("--max-restarts", "1", script(tmp_path, KILLED))
    assert launch.wait(200) == 0, launch.stderr_text()
    [waited] = [each for each in launch.events() if each["kind"] == "gpu_memory_free"]
    print(waited["reason"], waited.get("details"))
    out = launch.stdout_text().split()
    killed, again, kernel = (float(out[out.index(word) + 2]) for word in ("killed", "again", "first"))
    print(f"SIGKILL → script again {again - killed:.3f} s, → first kernel {kernel - killed:.3f} s")
    assert_nothing_left(launch)


def test_workers_are_bound_to_their_gpus_node_or_it_is_said_why_not(start: Start, tmp_path: Path) -> None:
    path = script(tmp_path, "import os; print('cpus', len(os.sched_getaffinity(0)))")
    launch = start("--numa-binding", "node", path)
    assert launch.wait(200) == 0, launch.stderr_text()
    told = [each for each in launch.events() if each["kind"] in ("workers_bound", "workers_not_bound")]
    assert len(told) == 1
    print(told[0]["reason"], launch.stdout_text())
