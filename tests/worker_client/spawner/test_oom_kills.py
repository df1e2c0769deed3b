"""Which out-of-memory kills concern a process? With simulated folders of cgroup v2, and a real group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, until, worker
from worker_client.spawner import cgroup, oom_kills

EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill {}\noom_group_kill 0\n"  # as the kernel writes memory.events


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup v2 hierarchy mounted from the container's own group on, with this process in job/spawner."""
    mounts, paths = {"cgroup2": (str(tmp_path), "/box")}, {"": "/box/job/spawner"}

    def own_paths(_pid: str) -> dict[str, str]:
        return paths

    monkeypatch.setattr(cgroup, "mounts", lambda: mounts)
    monkeypatch.setattr(cgroup, "paths_of", own_paths)
    (tmp_path / "job/spawner/cycle-0").mkdir(parents=True)
    return tmp_path


def count(folder: Path, kills: int) -> None:
    (folder / "memory.events").write_text(EVENTS.format(kills))


def test_the_cycles_own_group_counts(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(top, 90)
    count(cycle, 1)
    counter = oom_kills.oom_counter(str(cycle))
    count(cycle, 3)
    count(top, 95)
    assert (counter.path, counter.kills_since()) == (f"{cycle}/memory.events", 2)


@pytest.mark.parametrize("folder", ["", "job/spawner/cycle-0"])
def test_where_the_controller_is_on_above_only_that_group_counts(top: Path, folder: str) -> None:
    """`folder` "": no group could be made for the cycle."""
    count(top / "job", 4)
    counter = oom_kills.oom_counter(str(top / folder) if folder else "")
    assert (counter.path, counter.kills_since()) == (f"{top}/job/memory.events", 0)
    count(top / "job", 5)
    assert counter.kills_since() == 1


def test_without_a_memory_group_the_machine_counts(top: Path) -> None:
    counter = oom_kills.oom_counter(str(top / "job/spawner/cycle-0"))
    assert counter.path == "/proc/vmstat"
    assert counter.kills_since() >= 0


def test_a_group_that_was_removed_meanwhile_has_killed_nobody(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 1)
    counter = oom_kills.oom_counter(str(cycle))
    (cycle / "memory.events").unlink()
    assert counter.kills_since() == 0


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/memory"), reason="needs a writable memory cgroup (v1)"
)
@pytest.mark.parametrize("who", ["worker", "child"])
def test_out_of_memory_is_told_apart(script: Script, tmp_path: Path, who: str) -> None:
    group = Path(f"/sys/fs/cgroup/memory/holdfast-test-{os.getpid()}")
    eat = "eat = bytearray(200 << 20)"
    source = {
        "worker": f"import sys\n{eat}\n",
        "child": (
            f"import os, sys\nif os.fork() == 0:\n    {eat}\n    os._exit(0)\n"
            "status = os.wait()[1]\nsys.exit(1 if status else 0)"
        ),
    }[who]
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        path = script(f"open('{group}/cgroup.procs', 'w').write('0')\n{source}")
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\necho 0 > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        with Rig(path, python=str(wrapper), env=clean_env()) as rig:
            (end,) = rig.run(worker())
            assert end.out_of_memory
            assert (end.code, end.signal) == ((None, 9) if who == "worker" else (1, None))
            rig.spawn(worker(1))  # our own later kill in the same cgroup is not taken for one
            rig.end()
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="an empty cgroup")
        group.rmdir()
