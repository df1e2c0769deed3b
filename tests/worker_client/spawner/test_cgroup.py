"""Where are out-of-memory kills counted under cgroup v2, in simulated folders, and whose is a cgroup?"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_client.spawner import cgroup

EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill {}\noom_group_kill 0\n"  # as the kernel writes memory.events


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup v2 hierarchy mounted from the container's own group on, with this process in job/spawner."""
    mounts, paths = {"cgroup2": (str(tmp_path), "/box")}, {"": "/box/job/spawner"}

    def own_paths(_pid: str) -> dict[str, str]:
        return paths

    monkeypatch.setattr(cgroup, "_mounts", lambda: mounts)
    monkeypatch.setattr(cgroup, "_paths_of", own_paths)
    (tmp_path / "job/spawner/cycle-0").mkdir(parents=True)
    return tmp_path


def count(folder: Path, kills: int) -> None:
    (folder / "memory.events").write_text(EVENTS.format(kills))


def test_the_cycles_own_group_counts(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(top, 90)
    count(cycle, 1)
    counter = cgroup.oom_counter(str(cycle))
    count(cycle, 3)
    count(top, 95)
    assert (counter.path, counter.kills_since()) == (f"{cycle}/memory.events", 2)


@pytest.mark.parametrize("folder", ["", "job/spawner/cycle-0"])
def test_where_the_controller_is_on_above_only_that_group_counts(top: Path, folder: str) -> None:
    """`folder` "": no group could be made for the cycle."""
    count(top / "job", 4)
    counter = cgroup.oom_counter(str(top / folder) if folder else "")
    assert (counter.path, counter.kills_since()) == (f"{top}/job/memory.events", 0)
    count(top / "job", 5)
    assert counter.kills_since() == 1


def test_without_a_memory_group_the_machine_counts(top: Path) -> None:
    counter = cgroup.oom_counter(str(top / "job/spawner/cycle-0"))
    assert counter.path == "/proc/vmstat"
    assert counter.kills_since() >= 0


def test_a_group_that_was_removed_meanwhile_has_killed_nobody(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 1)
    counter = cgroup.oom_counter(str(cycle))
    (cycle / "memory.events").unlink()
    assert counter.kills_since() == 0


def test_two_spawners_with_the_same_pid_in_two_pid_namespaces_have_cgroups_of_their_own() -> None:
    """Like two nodes of one job in containers on one machine: each kills only its own cycle."""
    make = (
        "import sys; from worker_client.spawner.cgroup import CycleCgroups as c; "
        "print(c('twice', wanted=True).folder, flush=True); sys.stdin.read()"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", make]
    # Both live at the same time: an ended namespace's number is reused.
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [each.stdout.readline().strip() for each in both if each.stdout is not None]
    refusals = [each.communicate()[1] for each in both]
    folders = [Path(line) for line in lines if line]
    try:
        if len(folders) < 2:
            pytest.skip(f"needs root, namespaces and cgroup v2: {refusals[0]}")
        assert folders[0] != folders[1]
    finally:
        for folder in set(folders):
            folder.rmdir()


def test_where_no_process_more_is_allowed_no_group_is_made(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert not cgroup._can_join(str(top))  # pyright: ignore[reportPrivateUsage]
