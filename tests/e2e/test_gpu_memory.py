"""A job restarts once the memory of its GPUs is free; the GPUs are simulated, all else is real."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import assert_nothing_left, wait_until
from tests.fakes.gpus import MIB, Gpus, build

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

FAILS_ONCE = """
import os, sys, time
print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], time.monotonic(), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
"""
GOES_BAD = """
import os, pathlib, sys, time
print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
sys.exit(3)
"""
LOSES_ITS_SPAWNER = """
import os, sys, time
print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid(), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(60)
"""


@pytest.fixture
def gpus(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Gpus:
    return Gpus(tmp_path, build(tmp_path_factory.mktemp("nvml")), count=1)


def script(tmp_path: Path, text: str = FAILS_ONCE) -> str:
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


@pytest.mark.alone
def test_new_workers_start_as_soon_as_the_memory_is_free(start: Start, tmp_path: Path, gpus: Gpus) -> None:
    gpus[0].used = 40 * 1024 * MIB
    launch = start("--max-restarts", "1", script(tmp_path), environment=gpus.environment)
    launch.wait_for_output("up 0", count=1)
    time.sleep(2.0)  # long enough that checks become rare, and that people are told
    assert "up 1" not in launch.stdout_text()
    freed_at_s = time.monotonic()
    gpus[0].used = 0
    assert launch.wait() == 0, launch.stderr_text()
    [up_at_s] = [float(line.split()[2]) for line in launch.stdout_text().splitlines() if line.startswith("up 1")]
    assert up_at_s - freed_at_s < 1.0, "the fixed poll of others takes 2 s"
    print(f"memory free → new worker's first line: {up_at_s - freed_at_s:.3f} s")
    kinds = launch.kinds()
    assert kinds.count("gpu_memory_held") == 1
    assert kinds.count("gpu_memory_free") == 1
    assert "waiting at most 49 s more for GPU memory: GPU 0 has 40960 MiB in use" in launch.stderr_text()
    assert_nothing_left(launch)


def test_after_its_time_the_restart_goes_on(start: Start, tmp_path: Path, gpus: Gpus) -> None:
    gpus[0].used = 600 * MIB
    launch = start(
        "--max-restarts", "1", "--ft-gpu-memory-reclaim-timeout", "0.2", script(tmp_path), environment=gpus.environment
    )
    assert launch.wait() == 0, launch.stderr_text()
    assert "GPU memory is not free after 0.2 s, and the restart goes on: GPU 0 has 600 MiB" in launch.stderr_text()
    assert "is suspect: memory of GPU 0 was still in use after 0.2 s; it stays in the job" in launch.stderr_text()
    off = start("--max-restarts", "1", "--ft-gpu-memory-reclaim-timeout", "0", script(tmp_path),
                environment=gpus.environment)  # fmt: skip
    assert off.wait() == 0, off.stderr_text()
    assert not any(str(kind).startswith("gpu_memory") for kind in off.kinds())


def test_workers_of_a_new_spawner_wait_for_the_memory_of_the_last_ones(
    start: Start, tmp_path: Path, gpus: Gpus
) -> None:
    gpus[0].used = 40 * 1024 * MIB
    launch = start("--max-restarts", "1", script(tmp_path, LOSES_ITS_SPAWNER), environment=gpus.environment)
    launch.wait_for_output("up 0", count=1)
    os.kill(int(launch.stdout_text().split()[2]), signal.SIGKILL)
    waits = "s more for GPU memory: GPU 0 has 40960 MiB in use"
    wait_until(lambda: waits in launch.stderr_text(), timeout_s=30, what=waits)
    assert "up 1" not in launch.stdout_text()
    gpus[0].used = 0
    assert launch.wait() == 0, launch.stderr_text()
    assert "up 1" in launch.stdout_text()
    kinds = launch.kinds()
    assert kinds.index("spawner_lost") < kinds.index("gpu_memory_held") < kinds.index("gpu_memory_free")
    assert_nothing_left(launch)


def test_a_stop_does_not_wait_for_memory(start: Start, tmp_path: Path, gpus: Gpus) -> None:
    gpus[0].used = 40 * 1024 * MIB
    launch = start("--max-restarts", "1", script(tmp_path, GOES_BAD), environment=gpus.environment)
    launch.wait_for_output("up 0", count=1)
    (launch.folder / "go").touch()
    waits = "waiting at most 49 s more for GPU memory"
    wait_until(lambda: waits in launch.stderr_text(), timeout_s=30, what=waits)
    before_s = time.monotonic()
    launch.process.terminate()
    assert launch.wait() in (1, 143)
    assert time.monotonic() - before_s < 20
    assert_nothing_left(launch)


def test_a_gpu_that_falls_ill_takes_its_node_out_before_the_next_cycle(
    start: Start, tmp_path: Path, gpus: Gpus
) -> None:
    launch = start("--max-restarts", "3", script(tmp_path, GOES_BAD), environment=gpus.environment)
    launch.wait_for_output("up 0", count=1)
    gpus[0].action = 1
    (launch.folder / "go").touch()
    assert launch.wait() == 1
    assert "is unhealthy: GPU 0: the driver asks for a recovery action: gpu reset" in launch.stderr_text()
    assert launch.stdout_text().count("up") == 1
    assert "node_checked" in launch.kinds()
    assert_nothing_left(launch)
