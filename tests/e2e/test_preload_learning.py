"""A script that imports torch inside a function restarts without loading it again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(180)

SCRIPT = """
import os, sys, time

def main():
    began_s = time.perf_counter()
    import torch
    if "SLOW_TORCH" not in os.environ:
        import torch.distributed as dist
    line = f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {time.perf_counter() - began_s:.3f}\\n"
    os.write(1, line.encode())
    if "SLOW_TORCH" not in os.environ:
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        with open(os.environ["FIFO"]) as fifo:  # Until the test has seen a successor.
            fifo.read()
        sys.exit(3)
    if "SLOW_TORCH" not in os.environ:
        dist.destroy_process_group()

if sys.argv:
    main()
"""


def has_successor(launcher: int) -> bool:
    """Returns whether the launcher has a second spawner that is ready (its title shows that)."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    return sum(title.startswith(b"holdfast spawner") for title in titles) == 2


SLOW_TORCH = """
import time
time.sleep(1)

class default_generator:
    seed = staticmethod(lambda: 0)
"""


@pytest.mark.parametrize("torch", ["slow", pytest.param("real", marks=pytest.mark.soak)])
def test_the_second_cycle_finds_torch_loaded(start: Start, tmp_path: Path, torch: str) -> None:
    script = tmp_path / "late.py"
    script.write_text(dedent(SCRIPT))
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    environment = {"FIFO": str(fifo)}
    if torch == "slow":
        (tmp_path / "library").mkdir()
        (tmp_path / "library" / "torch.py").write_text(SLOW_TORCH)
        environment |= {"SLOW_TORCH": "1", "PYTHONPATH": str(tmp_path / "library")}
    launch = start("--nproc-per-node", "2", "--max-restarts", "1", str(script), environment=environment)
    wait_until(lambda: has_successor(launch.process.pid), timeout_s=120, what="a successor")
    with fifo.open("w"):
        pass
    assert launch.wait(60) == 0, launch.explained()
    lines = [line.split() for line in launch.stdout_text().splitlines()]
    first = [float(seconds) for cycle, seconds in lines if cycle == "0"]
    second = [float(seconds) for cycle, seconds in lines if cycle == "1"]
    assert len(first) == len(second) == 2
    assert max(second) < min(first) / 10
    learned = [event for event in launch.events() if event["kind"] == "preload_learned"]
    assert [event["reason"] for event in learned] == [
        "every worker imports torch by itself: it is being loaded for the next cycles"
    ]
    assert_nothing_left(launch)


YOUNG = """
import os, signal, sys, time

def main():
    begun = os.path.join(os.path.dirname(__file__), "begun")
    if os.environ["RANK"] == "0":
        open(begun, "w").close()
    elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while not os.path.exists(begun):
            time.sleep(0.005)
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # ends this process while both import
    began_s = time.perf_counter()
    import torch
    line = f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {time.perf_counter() - began_s:.3f}\\n"
    os.write(1, line.encode())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(60)

if sys.argv:
    main()
"""


@pytest.mark.soak
def test_a_rank_that_dies_while_it_imports_torch_costs_one_import(start: Start, tmp_path: Path) -> None:
    """The restart waits for the load that began beside the first workers."""
    script = tmp_path / "young.py"
    script.write_text(dedent(YOUNG))
    launch = start("--nproc-per-node", "2", "--max-restarts", "1", str(script))
    assert launch.wait(60) == 0, launch.explained()
    lines = [line.split() for line in launch.stdout_text().splitlines()]
    assert [float(seconds) < 0.1 for cycle, seconds in lines if cycle == "1"] == [True, True]
    assert_nothing_left(launch)


# For a spawner that loads it ahead, it takes as long as the test wants.
TORCH = """
import os, time
if "RANK" not in os.environ:
    while not os.path.exists(f"{os.path.dirname(__file__)}/go"):
        time.sleep(0.02)

class default_generator:
    seed = staticmethod(lambda: 0)
"""
LATE = """
import os, sys, time

def main():
    import torch
    while not os.path.exists("go"):
        time.sleep(0.02)

if sys.argv:
    main()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[NodeDaemon]:
    with NodeDaemon(tmp_path / "daemon") as running:
        yield running


def with_loading_successor(start: Start, daemon: NodeDaemon, tmp_path: Path) -> tuple[Launch, int]:
    """Returns a job that runs, and its spawner's successor, which loads."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "torch.py").write_text(TORCH)
    script = tmp_path / "late.py"
    script.write_text(LATE)
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1", str(script),
        environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir), "PYTHONPATH": str(library)},
    )  # fmt: skip
    wait_until(lambda: len(spawners_of(daemon)) == 2, timeout_s=60, what="a successor")
    # The supervisor has told it, so the spawner need not report it to the next one.
    wait_until(lambda: "preload_learned" in launch.kinds(), timeout_s=10, what="the lesson")
    return launch, spawners_of(daemon)[1]


def spawners_of(daemon: NodeDaemon) -> list[int]:
    """Returns the spawners in the order of their starts."""
    records = (daemon.socket_dir / "spawners").glob("*.json")
    return [json.loads(each.read_bytes())["pid"] for each in sorted(records, key=lambda each: each.stat().st_mtime_ns)]


def test_a_successor_that_loads_does_not_hold_up_the_return_of_a_supervisor(
    start: Start, daemon: NodeDaemon, tmp_path: Path
) -> None:
    launch, successor = with_loading_successor(start, daemon, tmp_path)
    os.kill(successor, signal.SIGSTOP)
    daemon.kill()
    daemon.start()
    wait_until(lambda: "supervisor_returned" in launch.kinds(), timeout_s=15, what="the return")
    wait_until(lambda: successor not in launch.leftovers(), timeout_s=5, what="the end of the successor")
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert_nothing_left(launch, within_s=10)


def test_the_next_supervisor_starts_a_successor_again(start: Start, daemon: NodeDaemon, tmp_path: Path) -> None:
    launch, lost = with_loading_successor(start, daemon, tmp_path)
    first = spawners_of(daemon)[0]
    daemon.kill()
    wait_until(lambda: lost not in launch.leftovers(), timeout_s=10, what="the end of the successor")
    daemon.start()
    wait_until(lambda: set(spawners_of(daemon)) - {first, lost}, timeout_s=20, what="another successor")
    (tmp_path / "library" / "go").touch()
    (another,) = set(spawners_of(daemon)) - {first, lost}
    title = Path(f"/proc/{another}/cmdline")
    wait_until(lambda: title.read_bytes().startswith(b"holdfast spawner"), timeout_s=20, what="its load")
    launch.holdfast("restart", launch.job_id)
    wait_until(lambda: first not in launch.leftovers(), timeout_s=20, what="the end of the one that it replaces")
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.stderr_text()
    assert_nothing_left(launch, within_s=10)
