"""Workers forked ahead of their cycle become ranks like any other, or leave no trace."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Emptied, ForkAhead, KillTree, PrepareStore, Signal, Spawn, StoreReady, StreamPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, with_env, worker
from worker_client.spawner import child_state, fork_and_exec, process_attributes
from worker_client.spawner.event_loop import Events
from worker_client.spawner.fork_and_exec import Start
from worker_client.spawner.prefork_pool import PLAN_BYTES_MAX, PreforkPool

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(60)"
TELLS = """
    import os, signal, sys
    print(os.environ["RANK"], os.getpid(), os.getsid(0), sys.argv[1:], signal.pthread_sigmask(signal.SIG_BLOCK, ()),
          sorted(map(int, os.listdir("/proc/self/fd")))[:-1], file=sys.stderr)
"""


def test_they_become_the_ranks_of_their_cycle(script: Script, tmp_path: Path) -> None:
    with Rig(script(TELLS), "a") as rig:
        preforked = rig.prefork(1, 2)
        plans = [worker(each, stderr=StreamPlan(console=False, file=str(tmp_path / f"{each}"))) for each in (0, 1)]
        ends = rig.run(*plans, cycle=1)
        assert {end.pid for end in ends} == preforked
        assert [end.code for end in ends] == [0, 0]
        rig.end()
        for end in ends:
            told = (tmp_path / f"{end.local_rank}").read_text()
            assert told == f"{end.local_rank} {end.pid} {end.pid} ['a'] set() [0, 1, 2]\n"


def test_more_workers_than_stand_ready_are_forked_as_ever(script: Script) -> None:
    with Rig(script("pass")) as rig:
        preforked = rig.prefork(1, 1)
        ends = rig.run(worker(0), worker(1), cycle=1)
        assert [end.code for end in ends] == [0, 0]
        assert len({end.pid for end in ends} & preforked) == 1


def test_the_rest_ends_once_the_workers_are_started(script: Script) -> None:
    with Rig(script(SLEEPS)) as rig:
        rig.prefork(1, 3)
        (spawned,) = rig.spawn(worker(), cycle=1)
        until(lambda: rig.children() == {spawned.pid}, what="the end of the others")


def test_those_of_a_cycle_that_never_comes_end_with_the_next_order(script: Script) -> None:
    with Rig(script(SLEEPS)) as rig:
        preforked = rig.prefork(1, 2)
        (spawned,) = rig.spawn(worker(), cycle=2)
        assert spawned.pid not in preforked
        until(lambda: rig.children() == {spawned.pid}, what="the end of those that wait")


def test_those_that_never_get_a_rank_end_with_their_cycle_or_the_job(script: Script) -> None:
    with Rig(script("print('ran')")) as rig:
        preforked = rig.prefork(1, 2)
        rig.send(KillTree(1))
        rig.receive(Emptied)
        assert not rig.children() & preforked
        preforked = rig.prefork(2, 2)
        out, err = rig.end()
        assert not any(map(is_alive, preforked))
        assert (out, err) == ("", "")


@pytest.mark.parametrize("private", [True, False])
def test_they_end_soon_after_a_supervisor_that_does_not_return(script: Script, private: bool) -> None:
    with Rig(script("print('ran')"), private=private, supervisor_return_timeout_s=0.1) as rig:
        preforked = rig.prefork(1, 2)
        rig.socket.close()
        assert rig.process.wait(2) == 0
        assert not any(map(is_alive, preforked))


@pytest.mark.parametrize("cgroup", [True, False], ids=["cgroup", "walk"])
def test_the_end_of_the_old_cycle_does_not_touch_them(script: Script, cgroup: bool) -> None:
    with Rig(script(SLEEPS), cgroup=cgroup) as rig:
        (old,) = rig.spawn(worker())
        preforked = rig.prefork(1, 2)
        rig.send(Signal(0, signal.SIGTERM))
        assert rig.exited().pid == old.pid
        rig.send(KillTree(0))
        assert rig.receive(Emptied).cycle == 0
        assert all(map(is_alive, preforked))
        assert {each.pid for each in rig.spawn(worker(0), worker(1), cycle=1)} == preforked


def test_one_that_was_killed_meanwhile_is_replaced(script: Script) -> None:
    with Rig(script("pass")) as rig:
        preforked = rig.prefork(1, 2)
        victim = min(preforked)
        pidfd = os.pidfd_open(victim)
        os.kill(victim, signal.SIGKILL)
        select.select([pidfd], [], [], 10)  # the kernel takes time; a live one is rightly handed out
        os.close(pidfd)
        ends = rig.run(worker(0), worker(1), cycle=1)
        assert [end.code for end in ends] == [0, 0]
        assert victim not in {end.pid for end in ends}


def test_a_signal_waits_until_there_is_a_rank_to_report_its_end(script: Script) -> None:
    with Rig(script("print('ran')")) as rig:
        preforked = rig.prefork(1, 2)
        for pid, number in zip(sorted(preforked), (signal.SIGINT, signal.SIGTERM), strict=True):
            os.kill(pid, number)
        ends = rig.run(worker(0), worker(1), cycle=1)
        assert {end.pid for end in ends} == preforked
        # Like an interpreter interrupted at its start: a traceback and 1.
        assert sorted((end.code or 0, end.signal or 0) for end in ends) == [(0, signal.SIGTERM), (1, 0)]
        assert "ran" not in rig.end()[0]


def test_an_order_in_several_parts_is_one_order_for_those_that_stand_ready(script: Script) -> None:
    with Rig(script("pass")) as rig:
        preforked = rig.prefork(1, 3)
        rig.send(Spawn(1, (worker(0),), more=True))
        first = rig.exited(0)
        rig.send(Spawn(1, (worker(1),)))
        assert {first.pid, rig.exited(1).pid} <= preforked
        until(lambda: not rig.children(), what="the end of the third, which got no rank")


def test_an_environment_that_is_too_large_for_the_channel_goes_to_a_new_fork(script: Script) -> None:
    with Rig(script("import os; print(len(os.environ['LARGE']))")) as rig:
        (pid,) = rig.prefork(1, 1)
        (end,) = rig.run(with_env(0, {"LARGE": "x" * PLAN_BYTES_MAX}), cycle=1)
        assert end.pid != pid
        assert rig.end()[0] == f"{PLAN_BYTES_MAX}\n"


def test_a_limit_while_they_are_forked_costs_nothing_but_time(script: Script) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(1, "127.0.0.1", serve=False))  # the first store loads what the choice of a port needs
        rig.receive(StoreReady)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        in_use = len(os.listdir(f"/proc/{rig.process.pid}/fd"))
        before = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (in_use + 4, hard))
        rig.send(ForkAhead(1, 8))
        rig.send(KillTree(7))
        rig.receive(Emptied)  # the loop has continued
        until(lambda: len(rig.children()) < 8, what="an end of the forking")
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, before)
        rig.send(Spawn(1, tuple(worker(each) for each in range(8))))
        assert [rig.exited(each).code for each in range(8)] == [0] * 8
        until(lambda: not rig.children(), what="an end of all")


def test_where_no_process_can_be_made_none_stands_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_inherited: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(fork_and_exec, "fork", refuse)
    events, open_before = Events(), set(os.listdir("/proc/self/fd"))
    prefork_pool = PreforkPool(
        events, child_state.remember(process_attributes.Title(), frozenset()), adopt=lambda _cycle, _pid: None
    )
    prefork_pool.want(1, 4, "")
    events.run_once()
    assert prefork_pool.take(1, 0, Start({}, {})) == 0
    assert set(os.listdir("/proc/self/fd")) == open_before
    events.close()
