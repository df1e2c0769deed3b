"""Which out-of-memory kills concern a process? With simulated folders of cgroup v2, and a real group."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, clean_env, until, worker
from worker_client.spawner import cgroup, oom_kills
from worker_client.spawner.event_loop import Events
from worker_client.spawner.reaping import Ending

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
    count(top, 95)
    assert (counter.path, counter.killed_lately()) == (f"{cycle}/memory.events", False)
    count(cycle, 3)
    assert counter.killed_lately()


@pytest.mark.parametrize("folder", ["", "job/spawner/cycle-0"])
def test_where_the_controller_is_on_above_only_that_group_counts(top: Path, folder: str) -> None:
    """`folder` "": no group could be made for the cycle."""
    count(top / "job", 4)
    counter = oom_kills.oom_counter(str(top / folder) if folder else "")
    assert (counter.path, counter.killed_lately()) == (f"{top}/job/memory.events", False)
    count(top / "job", 5)
    assert counter.killed_lately()


def test_without_a_memory_group_the_machine_counts(top: Path) -> None:
    counter = oom_kills.oom_counter(str(top / "job/spawner/cycle-0"))
    assert counter.path == "/proc/vmstat"


def test_a_group_that_was_removed_meanwhile_has_killed_nobody(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 1)
    counter = oom_kills.oom_counter(str(cycle))
    (cycle / "memory.events").unlink()
    assert not counter.killed_lately()


def ran_out(counter: oom_kills.OomCounter, code: int | None, number: int | None) -> bool:
    ending = Ending(77, code, number, core_dumped=False)
    return oom_kills.ran_out_of_memory(ending, killed_by_us=False, counter=counter)


def test_a_signal_that_the_kernel_does_not_send_for_memory_is_not_explained_by_it(top: Path) -> None:
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 0)
    counter = oom_kills.oom_counter(str(cycle))
    count(cycle, 1)
    assert not any(ran_out(counter, None, each) for each in (signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM))
    assert ran_out(counter, None, signal.SIGKILL)
    assert ran_out(counter, 1, None), "of a child, for example"


def test_a_kill_explains_only_an_end_that_comes_soon_after_it(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a DataLoader is killed, and the script goes on; hours later, somebody kills a rank."""
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 0)
    counter = oom_kills.oom_counter(str(cycle))
    count(cycle, 1)
    counter.look()
    later_s = time.monotonic() + oom_kills.SOON_S + 1
    monkeypatch.setattr(oom_kills, "time", SimpleNamespace(monotonic=lambda: later_s))
    assert not ran_out(counter, None, signal.SIGKILL)
    count(cycle, 2)
    assert ran_out(counter, None, signal.SIGKILL)


def test_the_counts_are_read_again_and_again_while_there_are_workers(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom_kills, "LOOK_S", 0.01)
    cycle = top / "job/spawner/cycle-0"
    count(cycle, 0)
    counters = {oom_kills.oom_counter(str(cycle))}
    looks: list[oom_kills.OomCounter] = []

    def look(counter: oom_kills.OomCounter) -> None:
        looks.append(counter)

    monkeypatch.setattr(oom_kills.OomCounter, "look", look)
    events = Events()
    try:
        oom_kills.look_regularly(events, lambda: counters)
        events.run_once()
        assert len(looks) == 2
        counters.clear()
        events.run_once()
        events.set_timer("end", 0.05, lambda: None)
        events.run_once()  # Nothing else is due any more, so this returns at that end.
        assert len(looks) == 2
    finally:
        events.close()


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/memory"), reason="needs a writable memory cgroup (v1)"
)
@pytest.mark.parametrize("who", ["worker", "child", "child, then SIGABRT for another reason"])
def test_out_of_memory_is_told_apart(script: Script, tmp_path: Path, who: str) -> None:
    group = Path(f"/sys/fs/cgroup/memory/holdfast-test-{os.getpid()}")
    eat = "eat = bytearray(200 << 20)"
    child_eats = f"import os, sys, resource\nif os.fork() == 0:\n    {eat}\n    os._exit(0)\nstatus = os.wait()[1]\n"
    source, end_expected = {
        "worker": (f"import sys\n{eat}\n", (None, 9, True)),
        "child": (f"{child_eats}sys.exit(1 if status else 0)", (1, None, True)),
        "child, then SIGABRT for another reason": (
            f"{child_eats}resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()",
            (None, 6, False),
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
            assert (end.code, end.signal, end.out_of_memory) == end_expected
            rig.spawn(worker(1))  # our own later kill in the same cgroup is not taken for one
            rig.end()
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), what="an empty cgroup")
        group.rmdir()
