"""Which processes get a signal for workers?"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast_wire.spawner_link import (
    Emptied,
    Exited,
    KillTree,
    Signal,
    Spawn,
)

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker


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
