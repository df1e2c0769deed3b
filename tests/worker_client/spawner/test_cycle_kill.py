"""Nothing of a cycle is left after its end, however it tried to hide."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Emptied, End, Ended, KillTree, PrepareStore, Ready, Signal, StoreReady

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.escapes import ESCAPES, escaped
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from worker_client.spawner import ports, process_tree
from worker_client.spawner.cgroup import CycleCgroups
from worker_client.spawner.cycle_kill import KILL_WAIT_S, Killing
from worker_client.spawner.event_loop import SLICE_S, Events
from worker_client.spawner.process_tree import start_ticks


def ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@pytest.fixture(params=[True, False], ids=["cgroup", "walk"])
def cgroup(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_escapees_are_killed_and_reaped(script: Script, tmp_path: Path, cgroup: bool) -> None:
    with Rig(script(ESCAPES), str(tmp_path), cgroup=cgroup) as rig:
        folder = Path(rig.receive(Ready).cgroup or "/none") / "cycle-0"
        if cgroup and folder.parts[1] == "none":
            pytest.skip("no writable cgroup v2 here")
        store = rig.serve_store()
        rig.spawn(worker())
        pids = escaped(tmp_path)
        assert folder.is_dir() is cgroup
        began = time.monotonic()
        rig.send(KillTree(0))
        emptied = rig.receive(Emptied)
        took_s = time.monotonic() - began
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]  # not even as zombies
        assert emptied.stuck_pids == ()
        assert emptied.killed >= 0 if cgroup else emptied.killed >= len(pids)
        assert rig.exited().signal == signal.SIGKILL
        assert took_s < 2
        until(lambda: not os.path.exists(f"/proc/{store}"), what="the end of the store, for which nobody waits")
        until(lambda: not folder.exists(), what="the end of the cycle's control group")
        assert Path(f"/proc/{rig.process.pid}").exists()


def test_a_port_that_the_next_store_wants_is_free_when_the_cycle_has_ended(
    script: Script, tmp_path: Path, cgroup: bool
) -> None:
    with Rig(script("import time; time.sleep(60)"), str(tmp_path), cgroup=cgroup) as rig:
        port = ports.choose("127.0.0.1")
        rig.serve_store(port=port)
        rig.spawn(worker())
        rig.send(KillTree(0))
        rig.receive(Emptied)
        rig.send(PrepareStore(1, "127.0.0.1", port))
        assert rig.receive(StoreReady).port == port


def test_those_whom_a_finished_worker_left_behind(script: Script, tmp_path: Path, cgroup: bool) -> None:
    with Rig(script(ESCAPES), str(tmp_path), cgroup=cgroup) as rig:
        (end,) = rig.run(worker(LEAVE="1"))
        assert end.code == 0
        pids = escaped(tmp_path)
        rig.send(KillTree(0))
        rig.receive(Emptied)
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_fork_bomb_ends(script: Script, tmp_path: Path, cgroup: bool) -> None:
    """Each process makes another for as long as it lives; their own rate limits their number."""
    path = script(
        """
        import os, sys, time
        open(sys.argv[1] + "/up", "w").close()
        while True:
            if os.fork() == 0:
                os.setsid()
            else:
                time.sleep(0.002)
                os._exit(0)
        """
    )
    with Rig(path, str(tmp_path), cgroup=cgroup) as rig:
        rig.run(worker())
        rig.send(KillTree(0))
        assert rig.receive(Emptied).stuck_pids == ()
        children = Path(f"/proc/{rig.process.pid}/task/{rig.process.pid}/children").read_text()
        assert children == ""


def test_a_cycle_is_killed_alone(script: Script, tmp_path: Path, cgroup: bool) -> None:
    with Rig(script("import os, time\nos.fork()\ntime.sleep(60)"), cgroup=cgroup) as rig:
        (old,) = rig.spawn(worker(), cycle=0)
        store = rig.serve_store(1)
        (new,) = rig.spawn(worker(), cycle=1)
        rig.send(KillTree(0))
        assert rig.receive(Emptied).cycle == 0
        assert not is_alive(old.pid)
        assert is_alive(new.pid)
        assert is_alive(store)


def test_one_that_hid_after_the_next_store_was_made_belongs_to_its_own_cycle(
    script: Script, tmp_path: Path, cgroup: bool
) -> None:
    """A worker that must stop may still start a process, such as a checkpoint uploader, and leave it behind."""
    path = script(
        """
        import os, signal, sys, time
        def hide(*_):
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.rename(f"{sys.argv[1]}/up", f"{sys.argv[1]}/{os.getpid()}.hidden")
                time.sleep(60)
            os.wait()
            os._exit(1)
        signal.signal(signal.SIGTERM, hide)
        open(f"{sys.argv[1]}/up", "w").close()
        while True:
            time.sleep(60)
        """
    )
    with Rig(path, str(tmp_path), cgroup=cgroup) as rig:
        (old,) = rig.spawn(worker())
        until(lambda: (tmp_path / "up").exists(), what="its handler")
        next_ones = {*rig.prefork(1, 2), rig.serve_store(1)}
        made_at_ticks = ticks_now()
        until(lambda: ticks_now() > made_at_ticks + 1, what="a later tick of the clock")
        rig.send(Signal(0, signal.SIGTERM))
        assert rig.exited().pid == old.pid
        (hidden,) = until(lambda: list(tmp_path.glob("*.hidden")), what="who hides")
        assert (start_ticks(int(hidden.stem)) or 0) > made_at_ticks
        rig.send(KillTree(0))
        assert rig.receive(Emptied).cycle == 0
        assert not is_alive(int(hidden.stem))
        assert all(map(is_alive, next_ones))


def test_killing_what_is_gone_is_answered(script: Script) -> None:
    with Rig(script("pass")) as rig:
        rig.send(KillTree(5))
        assert rig.receive(Emptied) == Emptied(5, 0, ())


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup/freezer"), reason="needs a writable freezer cgroup (v1)"
)
def test_what_cannot_be_killed_is_given_up_and_named(script: Script) -> None:
    """A frozen process is in state D, like one that waits for a dead file server: SIGKILL waits until it thaws."""
    group = Path(f"/sys/fs/cgroup/freezer/holdfast-test-{os.getpid()}")
    group.mkdir()
    try:
        with Rig(script("import time; time.sleep(60)")) as rig:
            stuck, free = rig.spawn(worker(0), worker(1))
            (group / "cgroup.procs").write_text(str(stuck.pid))
            (group / "freezer.state").write_text("FROZEN")
            began = time.monotonic()
            rig.send(KillTree(0))
            assert rig.exited(1).pid == free.pid
            emptied = rig.receive(Emptied)
            assert emptied.stuck_pids == (stuck.pid,)
            assert KILL_WAIT_S - 0.5 < time.monotonic() - began < KILL_WAIT_S + 5
            rig.spawn(worker(2), cycle=1)  # the job continues beside it
            (group / "freezer.state").write_text("THAWED")
            assert rig.exited(0).signal == signal.SIGKILL
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text(), what="an empty cgroup")
        group.rmdir()


def test_a_suspension_counts_little_against_what_has_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was suspended with the spawner, as in a frozen container, and has had no time to end."""
    due: list[tuple[float, Callable[[], None]]] = []
    emptied: list[int] = []

    class Timers(Events):
        def set_timer(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
            due.append((delay_s, callback))

    with subprocess.Popen(["sleep", "600"]) as process:

        def children_reader() -> Callable[[int], list[int]]:
            return lambda pid: [process.pid] if pid == os.getpid() else []

        monkeypatch.setattr(process_tree, "children_reader", children_reader)
        killing = Killing(Timers(), CycleCgroups("j", wanted=False), {}, {}, lambda: None)
        killing.start(0, lambda killed, _: emptied.append(killed))
        waited_s = 0.0
        while not emptied:
            delay_s, pass_it = due.pop()
            assert delay_s <= SLICE_S
            waited_s += delay_s
            pass_it()
    assert (waited_s, len(emptied)) == (KILL_WAIT_S, 1)


def test_the_end_leaves_nothing_and_no_cgroup(script: Script, tmp_path: Path, cgroup: bool) -> None:
    with Rig(script(ESCAPES), str(tmp_path), cgroup=cgroup) as rig:
        folder = rig.receive(Ready).cgroup
        rig.spawn(worker())
        pids = escaped(tmp_path)
        rig.send(End())
        rig.receive(Ended)
        assert rig.process.wait(10) == 0
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        assert not folder or not os.path.exists(folder)


def test_the_death_of_a_spawner_ends_its_workers(script: Script) -> None:
    with Rig(script("import time; time.sleep(60)")) as rig:
        store = rig.serve_store()
        spawned = rig.spawn(worker(0), worker(1))
        pids = {store, *(each.pid for each in spawned), *rig.prefork(1, 2)}
        rig.process.kill()
        until(lambda: not any(map(is_alive, pids)), what="their death", wait_s=5)
