"""Nothing of a cycle is left after its end, however it tried to hide."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Emptied, End, Ended, KillTree, PrepareStore, Ready, Signal, StoreReady

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from worker_client.spawner import ports
from worker_client.spawner.killing import KILL_WAIT_S
from worker_client.spawner.tree import start_ticks

ESCAPES = """
    import os, signal, sys, time
    folder = sys.argv[1]
    def note(name):
        with open(f"{folder}/{name}.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
    def child(name, *steps):
        if os.fork() == 0:
            for step in steps:
                step()
            note(name)
            while True:
                time.sleep(60)
    def again():
        if os.fork():
            os._exit(0)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    child("plain")
    child("session", os.setsid)
    child("daemon", os.setsid, again)
    child("twice", again, again)
    child("stopped", lambda: note("stopped.early"), lambda: os.kill(os.getpid(), signal.SIGSTOP))
    note("main")
    if os.environ.get("LEAVE"):
        sys.exit(0)
    while True:
        time.sleep(60)
"""
NAMES = ("plain", "session", "daemon", "twice", "stopped.early", "main")


def ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def escaped(folder: Path) -> list[int]:
    until(lambda: all((folder / name).exists() for name in NAMES), what="all escapees")
    return [int((folder / name).read_text()) for name in NAMES]


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
        next_ones = {*rig.park(1, 2), rig.serve_store(1)}
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


def test_orphans_that_end_by_themselves_are_reaped(script: Script, tmp_path: Path) -> None:
    """A long training makes many daemons: no zombie may wait for the end of the job."""
    path = script(
        """
        import os, sys, time
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(0.1)
                open(sys.argv[1] + "/gone", "w").write(str(os.getpid()))
                os._exit(0)
            os._exit(0)
        os.wait()
        time.sleep(60)
        """
    )
    with Rig(path, str(tmp_path)) as rig:
        (spawned,) = rig.spawn(worker())
        until(lambda: (tmp_path / "gone").exists() and (tmp_path / "gone").read_text(), what="the daemon's end")
        children = Path(f"/proc/{rig.process.pid}/task/{rig.process.pid}/children")
        until(lambda: children.read_text().split() == [str(spawned.pid)], what="its reaping", wait_s=5)


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
        pids = {store, *(each.pid for each in spawned), *rig.park(1, 2)}
        rig.process.kill()
        until(lambda: not any(map(is_alive, pids)), what="their death", wait_s=5)


class TestSupervisorLoss:
    def test_a_private_spawner_ends_everything_within_5_s(self, script: Script, tmp_path: Path) -> None:
        with Rig(script(ESCAPES), str(tmp_path)) as rig:
            rig.spawn(worker())
            pids = [*escaped(tmp_path), rig.process.pid]
            began = time.monotonic()
            rig.socket.close()
            rig.process.wait(10)
            assert time.monotonic() - began < 5
            assert not [pid for pid in pids if is_alive(pid)]

    def test_workers_get_sigterm_first_and_an_early_end_is_not_waited_out(self, script: Script, tmp_path: Path) -> None:
        path = script(
            """
            import signal, sys, time
            def stop(*_):
                open(sys.argv[1] + "/saved", "w").close(); sys.exit(0)
            signal.signal(signal.SIGTERM, stop)
            open(sys.argv[1] + "/up", "w").close()
            time.sleep(60)
            """
        )
        with Rig(path, str(tmp_path)) as rig:
            rig.spawn(worker())
            until((tmp_path / "up").exists, what="the worker")
            began = time.monotonic()
            rig.socket.close()
            assert rig.process.wait(10) == 0
            assert time.monotonic() - began < 2
            assert (tmp_path / "saved").exists()

    def test_a_shared_supervisor_may_be_away(self, script: Script, tmp_path: Path) -> None:
        path = script(
            """
            import os, sys, time
            print("up", flush=True)
            while not os.path.exists(sys.argv[1] + "/go"):
                time.sleep(0.01)
            print("on", flush=True)
            sys.exit(int(os.environ["RANK"]))
            """
        )
        away = Rig(path, str(tmp_path), private=False, supervisor_return_timeout_s=1.5, exit_record_dir=str(tmp_path))
        with away as rig:
            first, second = rig.spawn(worker(0), worker(1))
            rig.socket.close()
            (tmp_path / "go").touch()
            assert rig.process.stdout is not None
            printed = rig.process.stdout.read()  # lines of unprefixed ranks may share one, as under torchrun
            assert (printed.count(b"up"), printed.count(b"on")) == (2, 2)
            assert rig.process.wait(10) == 0
            record = (tmp_path / "job-1.exits.jsonl").read_text().splitlines()
            assert len(record) == 2
            assert not is_alive(first.pid)
            assert not is_alive(second.pid)
            assert any(f'"pid":{second.pid},"code":1' in line for line in record)
