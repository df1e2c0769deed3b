"""Which processes get a signal for workers, and when?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import (
    Emptied,
    Exited,
    KillTree,
    Signal,
    Spawn,
)
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from worker_client.spawner import process_tree
from worker_client.spawner.event_loop import Events
from worker_client.spawner.fork_and_exec import Child
from worker_client.spawner.reaping import Ending
from worker_client.spawner.signalling import Signalling


def test_signals_reach_whole_sessions_or_single_workers(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, signal, sys, time
        child = os.fork()
        name = f"{sys.argv[1]}/{os.environ['RANK']}.{'child' if child == 0 else 'main'}"
        def got(number, _):
            open(name, "w").write(str(number)); os._exit(0)
        signal.signal(signal.SIGTERM, got)
        open(name + ".up", "w").close()
        while True: time.sleep(60)
        """
    )

    def names() -> set[str]:
        return {entry.name for entry in tmp_path.iterdir() if entry.suffix in (".child", ".main")}

    with Rig(path, str(tmp_path)) as rig:
        rig.spawn(worker(0), worker(1))
        until(lambda: len(list(tmp_path.glob("*.up"))) == 4, what="four processes")
        rig.send(Signal(0, signal.SIGTERM, (0,), tree=False))
        rig.exited(0)
        assert names() == {"0.main"}
        rig.send(Signal(0, signal.SIGTERM, (1,)))
        rig.exited(1)
        until(lambda: names() == {"0.main", "1.main", "1.child"}, what="the child's signal")
        rig.send(KillTree(0))
        rig.end()


def test_a_stopped_worker_hears_a_signal_that_resumes(script: Script) -> None:
    with Rig(script("import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)")) as rig:
        (spawned,) = rig.spawn(worker())
        stat = Path(f"/proc/{spawned.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")
        rig.send(Signal(0, signal.SIGTERM, resume=True))
        end = rig.exited()
    assert end.signal == signal.SIGTERM or end.code == 0  # the script may have ended before the signal came


def test_a_stopped_worker_that_is_killed_never_runs_again(script: Script, tmp_path: Path) -> None:
    assert Signal(0, signal.SIGTERM, resume=True).numbers == (signal.SIGCONT, signal.SIGTERM)
    assert Signal(0, signal.SIGKILL, resume=True).numbers == (signal.SIGKILL,)
    went_on = tmp_path / "went on"
    text = f"import os, signal; os.kill(os.getpid(), signal.SIGSTOP); open({str(went_on)!r}, 'w')"
    with Rig(script(text)) as rig:
        (spawned,) = rig.spawn(worker())
        stat = Path(f"/proc/{spawned.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")
        rig.send(Signal(0, signal.SIGKILL, resume=True))
        assert rig.exited().signal == signal.SIGKILL
    assert not went_on.exists()


def test_a_signal_for_another_cycle_does_nothing(script: Script) -> None:
    with Rig(script("import time; time.sleep(60)")) as rig:
        rig.spawn(worker(), cycle=2)
        rig.send(Signal(1, signal.SIGKILL))
        rig.send(Spawn(3, (worker(1, X="1"),)))
        rig.send(Signal(3, signal.SIGKILL))
        assert rig.exited(1).signal == signal.SIGKILL
        assert not rig.pending(Exited)


def test_what_a_dead_worker_has_left_in_its_session_is_ended_and_nothing_else(script: Script, tmp_path: Path) -> None:
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            open(f"{sys.argv[1]}/{os.getpid()}.left", "w").close()
            time.sleep(60)
        time.sleep(60)
        """
    )
    with Rig(path, str(tmp_path)) as rig:
        dead, living = rig.spawn(worker(0), worker(1))
        left = until(lambda: found if len(found := list(tmp_path.glob("*.left"))) == 2 else [], what="their children")
        pids = {int(each.stem) for each in left}
        os.kill(dead.pid, signal.SIGKILL)
        assert rig.exited().pid == dead.pid
        assert all(map(is_alive, pids))
        rig.send(Signal(0, signal.SIGKILL, local_ranks=(0,), sessions=(dead.pid,)))
        (orphan,) = until(lambda: [pid for pid in pids if not is_alive(pid)], what="the end of what was left")
        assert orphan in pids
        assert is_alive(living.pid)
        rig.send(Signal(0, signal.SIGKILL, local_ranks=(0,), sessions=(living.pid,)))
        rig.send(KillTree(5))
        assert rig.receive(Emptied).cycle == 5
        assert is_alive(living.pid)


SAVING = """
    import os, signal, sys, time
    def note(what):
        with open(sys.argv[1], "a") as file: file.write(what + chr(10))
    def got(*_): note("helper signalled"); os._exit(0)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, got)
        note("up")
        while True: time.sleep(60)
    def save(*_):
        note("saving"); time.sleep(0.5); note("saved"); os._exit(0)
    signal.signal(signal.SIGTERM, save)
    note("up")
    while True: time.sleep(60)
"""


def test_the_helpers_of_a_worker_hear_a_signal_after_it(script: Script, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    with Rig(script(SAVING), str(notes)) as rig:
        rig.spawn(worker())
        until(lambda: notes.read_text().count("up") == 2, what="both processes")
        rig.send(Signal(0, signal.SIGTERM))
        assert rig.exited().code == 0
        until(lambda: "helper signalled" in notes.read_text(), what="the helper's signal")
        assert notes.read_text().split("\n")[2:] == ["saving", "saved", "helper signalled", ""]
        rig.send(KillTree(0))
        rig.end()


LATE = """
import os, signal, sys, time
helper = os.fork()
signal.signal(signal.SIGTERM, signal.SIG_IGN if helper else signal.SIG_DFL)
if helper: print(helper, flush=True)
time.sleep(60)
"""


def test_the_helpers_of_a_worker_that_lives_on_hear_nothing_once_that_is_called_off() -> None:
    timers: dict[str, Callable[[], None]] = {}

    class Timers(Events):
        def set_timer(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
            timers[name] = callback

        def cancel_timer(self, name: str) -> None:
            timers.pop(name, None)

    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        children = {process.pid: Child(0, 0, process.pid, -1, None)}
        signalling = Signalling(Timers(), children, SpawnerSettings("j", ("x",), private=False))
        signalling.call_off()
        assert not timers, "nothing was said to them"
        signalling.terminate_workers()
        assert timers.keys() == {"signal helpers"}
        signalling.call_off()
        assert not timers
        assert children[process.pid].unattended_s == 60.0, "it may end of that signal yet"
        signalling.carry_out(Signal(0, signal.SIGTERM))
        assert children[process.pid].unattended_s is None
        process.kill()


@pytest.mark.parametrize("has_returned", [False, True])
@pytest.mark.parametrize(
    ("before", "entry", "unattended_s"),
    [("", "script", 60.0), ("trap '' TERM;", "script", None), ("trap '' TERM;", "command", 60.0)],
)
def test_code_0_after_the_end_for_want_of_a_supervisor_counts_only_if_the_rank_ignored_the_signal(
    before: str, entry: str, unattended_s: float | None, has_returned: bool
) -> None:
    """It may be that of a handler that has saved. A shell that ignores the signal may run a script that does not."""
    command = ["sh", "-c", f"{before} echo up; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = Child(0, 0, process.pid, -1, None)
        settings = SpawnerSettings("j", ("x",), entry=entry, private=False)
        signalling = Signalling(Events(), {process.pid: child}, settings)
        signalling.terminate_workers()
        if has_returned:
            signalling.call_off()
        signalling.worker_ended(child, Ending(process.pid, 0, None, core_dumped=False))
        process.kill()
    assert child.unattended_s == unattended_s


@pytest.mark.parametrize(
    ("workers_first", "grace_s", "after_s"),
    [
        (True, 0.0, 10.0),
        (True, 2.0, 10.0),
        (True, 15.0, 10.0),
        (True, 50.0, 45.0),
        (True, 1800.0, 60.0),
        (False, 50.0, None),
    ],
)
def test_the_helpers_of_a_late_worker_hear_it_too_and_those_of_a_command_at_once(
    workers_first: bool, grace_s: float, after_s: float | None
) -> None:
    timers: dict[str, tuple[float, Callable[[], None]]] = {}

    class Timers(Events):
        def set_timer(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
            timers[name] = (delay_s, callback)

    command = [sys.executable, "-c", LATE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            helper = int(process.stdout.readline())
            children = {process.pid: Child(0, 0, process.pid, -1, None)}
            settings = SpawnerSettings("j", ("x",), entry="script" if workers_first else "command")
            Signalling(Timers(), children, settings).carry_out(Signal(0, signal.SIGTERM, grace_s=grace_s))
            if workers_first:
                assert is_alive(helper)
                ((delay_s, late),) = timers.values()
                assert delay_s == after_s
                late()
            until(lambda: process_tree.is_zombie(helper), what="the helper's end")
            assert process.poll() is None
        finally:
            process.kill()
