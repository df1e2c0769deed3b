"""Are exactly the processes killed that are meant, and does a look count only if it can have missed nobody?"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence

import pytest
from holdfast_wire import process_sweep
from holdfast_wire.process_sweep import Entry, Sweep

pytestmark = pytest.mark.timeout(30)

# A process with a child in the same group, and one in a group of its own; it prints their pids.
FAMILY = (
    "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, "
    "subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True); input()"
)


@pytest.fixture
def family() -> Generator[tuple[int, int, int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    near, far = map(int, parent.stdout.readline().split())
    yield parent.pid, near, far
    for pid in (far, near, parent.pid):
        entry = process_sweep.look_up(pid)
        if entry is not None:
            os.kill(pid, signal.SIGKILL)
    parent.communicate()


def lives(pid: int) -> bool:
    """Returns whether it lives after a moment in which a killed one ends."""
    deadline_s = time.monotonic() + 2.0
    while (entry := process_sweep.look_up(pid)) is not None and not entry.has_ended:
        if time.monotonic() > deadline_s:
            return True
    return False


def soon() -> float:
    return time.monotonic() + 10.0


def test_an_entry_says_what_the_kernel_says() -> None:
    entry = process_sweep.look_up(os.getpid())
    assert entry is not None
    assert (entry.pid, entry.parent_pid, entry.group, entry.session) == (
        os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0),
    )  # fmt: skip
    assert not entry.has_ended
    assert os.getpid() in process_sweep.all_pids()


def test_the_group_of_a_process_is_meant_or_not(family: tuple[int, int, int]) -> None:
    parent, near, far = family
    found: list[int] = []
    sweep = Sweep(lambda entry: entry.pid == far, with_groups=True, on_found=lambda entry: found.append(entry.pid))
    assert sweep.run(soon())
    assert (found, [entry.pid for entry in sweep.found.values()]) == ([far], [far])
    assert (lives(far), process_sweep.look_up(near) is not None, process_sweep.look_up(parent) is not None) == (
        False, True, True,
    )  # fmt: skip
    assert Sweep(lambda entry: entry.pid == near, with_groups=False).run(soon())
    assert not lives(near)
    assert Sweep(lambda entry: entry.pid == parent, with_groups=True).run(soon())
    assert not lives(parent)


def test_related_processes_are_found_before_anything_is_killed(family: tuple[int, int, int]) -> None:
    parent, near, far = family

    def related(entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.pid == parent or entry.parent_pid == parent]

    assert Sweep(lambda _: False, with_groups=False, related=related).run(soon())
    assert (lives(near), lives(far), lives(parent)) == (False, False, False)


def test_a_signal_reaches_no_later_process_with_the_same_pid(family: tuple[int, int, int]) -> None:
    entry = process_sweep.look_up(family[1])
    assert entry is not None
    process_sweep.send(entry._replace(started_ticks=entry.started_ticks + 1), signal.SIGKILL, to_group=True)
    assert process_sweep.look_up(entry.pid) == entry
    process_sweep.send(entry, signal.SIGKILL)
    assert not lives(entry.pid)


def test_a_look_counts_only_if_nothing_ended_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def is_meant(entry: Entry) -> bool:
        nonlocal looks
        if entry.pid == os.getpid():
            looks += 1
            if looks <= 3:
                raise ProcessLookupError
        return False

    monkeypatch.setattr(process_sweep, "all_pids", lambda: [os.getpid()])
    monkeypatch.setattr(process_sweep, "CHASED_MAX", 0)
    assert Sweep(is_meant, with_groups=False).run(soon())
    assert looks == 3 + process_sweep.QUIET_LOOKS
    monkeypatch.setattr(process_sweep, "NOISY_S", 0.0)  # as after a while on a node where something always ends
    looks = 0
    assert Sweep(is_meant, with_groups=False).run(soon())
    assert looks == process_sweep.QUIET_LOOKS


def test_what_can_not_be_ended_in_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    number = iter(range(1 << 20))
    own = process_sweep.look_up(os.getpid())
    assert own is not None
    monkeypatch.setattr(process_sweep, "all_pids", lambda: [1])

    def another(pid: int) -> Entry:
        return own._replace(pid=pid, started_ticks=next(number))

    def has_no_effect(entry: Entry, number: int, *, to_group: bool) -> None:
        del entry, number, to_group

    monkeypatch.setattr(process_sweep, "look_up", another)
    monkeypatch.setattr(process_sweep, "send", has_no_effect)
    assert not Sweep(lambda _: True, with_groups=False).run(time.monotonic() + 0.05)


def test_a_look_without_file_descriptors_finds_nobody_and_proves_nothing(
    family: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, _, _ = family

    def exhausted(path: str, mode: str) -> object:
        raise OSError(errno.EMFILE, "Too many open files", path)

    sweep = Sweep(lambda entry: entry.pid == parent, with_groups=False)
    monkeypatch.setattr(process_sweep, "open", exhausted, raising=False)
    assert not sweep.run(time.monotonic() + process_sweep.NOISY_S + 0.5)
    monkeypatch.undo()
    assert sweep.run(soon())
    assert [entry.pid for entry in sweep.found.values()] == [parent]
