"""One thousand seeds in each run of the suite. A failure prints how to repeat it: `python -m tests.sim --seed N`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from supervisor.core.facts import JobState
from tests.sim.faults import (
    DATA_LOST,
    DEPARTURES,
    Fault,
    Kind,
    draw_departures,
    draw_many,
    draw_schedule,
    draw_scheduler_end,
    scheduled,
)
from tests.sim.playing import play, play_many, play_seed, report, shrunk
from tests.sim.setup import draw_setup, large_setup
from tests.sim.world import World

SEEDS = 1000
SEEDS_PER_TEST = 50
LEAVING_SEEDS = 300
SCHEDULER_SEEDS = 150
STOPPED = JobState.STOPPED
pytestmark = pytest.mark.timeout(600)  # seconds of one core, which others may need, too


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_seed_keeps_every_promise(first: int):
    played = play_many((first, SEEDS_PER_TEST, None))
    assert not played.failures, "\n\n".join(played.failures)


def test_a_job_that_a_scheduler_ends_with_its_ranks_has_not_failed():
    """Neither without a restart left, nor if its leader's node is the first to go."""
    for seed in (*range(SCHEDULER_SEEDS), 315, 941):  # the last two: the leader's node leaves
        drawn = draw_setup(seed)
        setup = replace(drawn, delay_max_s=min(drawn.delay_max_s, 0.05))  # else the stop follows too late
        world = play(setup, draw_scheduler_end(setup, at_s=12.0))
        assert not world.complaints, report(world)
        verdicts = {host.verdict for host in world.hosts.values()}
        assert all(each is not None and each.state is not JobState.FAILED for each in verdicts), (seed, verdicts)


@pytest.mark.parametrize(
    ("seed", "nodes", "numbers"),
    [
        (819, 3, (0, 1)),  # another process of a node meets a leader before the next takeover
        (1061, 5, (0,)),  # a stop, before all nodes have met the leader
        (3553, 5, (0,)),
        (3860, 2, (1, 4, 7)),
        (9353, 2, (0,)),  # a lost node reports its old fault late
        (16065, 3, (0,)),  # a node is stopped just when its ranks are to start
        (20876, 5, (0, 1)),  # the leader of the next run is lost at once
        (22297, 2, (0, 3, 5)),  # two runs, of which the first had a fault
        (40024, 2, (0,)),  # a lease is revoked while a job ends well
        (43385, 5, (1,)),  # the same after some nodes have begun a cycle
        (62325, 3, (0, 4, 8, 9)),  # all nodes but one that heard the verdict are lost
        (89380, 2, (0,)),  # a fault is reported just before the node reports its state
        (107611, 2, (0, 1)),  # a spawner is silent twice
        (113838, 5, (0, 1)),  # a leader is paused while a slow backend renews its lead
        (500561, 3, (1, 2)),  # a new leader repeats the first order to nodes that it has not reached
        (500944, 4, (4, 6)),
        (502199, 4, (1,)),
        (501047, 3, (2, 5, 6, 8)),  # a restored ledger, and a node of an older cycle that leads before the newer one
        (514134, 4, (1, 6)),  # a leader that all is well for resigns, and is cut off
        (559541, 3, (0, 3, 4, 5, 9)),  # a spawner hears late that all was well, for the second time
        (8027099, 50, (1,)),  # a new leader's relays are not all there in time for nodes whose ranks run
        (8096860, 50, (0,)),
        (8025717, 50, (0, 2)),
        (31014021, 5, (0,)),  # the backend is restored between a write and its answer
        (32012175, 2, (0, 1)),  # a lease is revoked while the next leader is cut off in one direction
        (32002031, 4, (0,)),  # a supervisor stands still before a new spawner has been told the fence
        (8096628, 3, (0, 1, 3, 6, 9)),  # the ledger is looked at while a newer one is being written
        (7001520, 2, (0, 2, 3, 4)),  # a worker that starts after the order to end is not waited for to arm a limit
        (577503, 2, (2, 3)),  # a spare leads after the data is lost, and the leader before it has not ended its workers
        (2950, 2, (0, 2)),  # a node that took no part in the new history finds its verdict
        (571197, 50, (0,)),  # each node hangs on another one as the job is stopped
        (707470, 2, (0, 2, 3, 7, 8, 9)),  # only a node that is cut off from the backend knows the newest cycle
        (2034045, 3, (0, 1, 2, 4, 5)),  # the same for the first cycle after a take-over
        (2046053, 3, (0, 1)),  # a rank that no fault has hit trains on after a pause
        (9036433, 3, (1, 5, 6, 7, 9)),  # a group that nobody can know of while the data is lost
        (9075890, 2, (0, 3, 4)),
        (9047232, 5, (0, 2, 4)),  # the data is lost while the verdict is on its way
        (81057104, 3, (2, 5, 6)),  # a node gives up, and the data are lost; the others go on
        (81062734, 2, (0, 4, 5)),
        (81059725, 3, (0, 1, 2, 3)),  # the data are lost with the verdict, and a spare that was cut off begins
        (80031179, 5, (0, 1, 2)),  # the same just before it is sent
        (9056998, 3, (2, 3, 9)),  # the leader of a new run learns how the run before has ended
        (501307, 2, (1, 4)),  # two nodes that know different terms lead after the data is lost
        (60045765, 50, ()),  # relays leave at the job's end before their nodes have the verdict
        (60004828, 2, (0, 1)),  # a leader that is cut off before its first ledger is kept counts on no witness
        (60024110, 4, (0, 2, 4, 5)),  # after a loss of data, the only node that knows more has a slow link
        (60043705, 1, (1,)),  # a job ends without a rank that is stuck in the kernel
        (32006651, 2, (0, 1, 2)),  # a node that knows of no loss leads after one that does
        (70063475, 3, (0, 1)),  # a backend goes back to just before a lead, and the next is made at the same count
        (70070987, 5, (0, 1, 9)),  # a node that was paused says something to a relay that has ended
        (91032081, 5, (0,)),  # a silent node comes as another process, and tells its old fault before its state
        (99004761, 5, (1, 2, 4)),  # a relay ends before a message has come to it, which was forwarded all the same
        (110002281, 2, (0, 1)),  # a spare that nobody confirms leads, and begins a cycle on its own node
        (110008242, 3, (0,)),  # a spawner starts its workers so slowly that the fence passes, which was moved meanwhile
        (110020960, 4, (0, 1)),
        (110030794, 5, (0, 1)),
        (110092365, 4, (0, 6, 8)),  # a node learns how the run before ended while its ranks still end, and only once
        (110038868, 3, (0,)),  # a supervisor continues, orders what it had decided, and then sees its fence
        (110052676, 2, (0, 1)),
        (110156376, 3, (0, 1, 3)),  # the data are lost just before the verdict is told
        (110220461, 3, (1, 2, 3, 4)),
        (110147842, 1, (0, 1, 2, 3)),  # a supervisor was stopped while it waited for ranks to end
        (110183263, 3, (1, 3, 4)),
        (110257385, 1, (5, 6, 7)),
        (50008426, 3, (0,)),  # a message waits for a relay that is cut off, and its node has another connection
        (110108674, 4, (0, 2)),  # a spawner continues, and reads a start together with the end of its cycle
        (110173183, 4, (2, 4)),
        (110197227, 2, (1, 2)),
        (110197022, 5, (0,)),  # a node waits for a relay of its next leader until its ranks have to end
    ],
)
def test_seeds_that_have_found_something(seed: int, nodes: int, numbers: tuple[int, ...]):
    setup = draw_setup(seed, nodes=nodes)
    drawn = draw_schedule(setup)
    assert play(setup, [drawn[number] for number in numbers]).complaints == []


@pytest.mark.parametrize(
    ("seed", "nodes", "numbers"),
    [
        (61000951, 3, (0, 2, 3, 4, 5)),  # a process that knows nothing ends the job while nobody can tell it
        (80022909, 5, (1, 3, 6, 8)),  # a process that the leader has refused has ended, not the job
        (80023246, 3, (0, 1, 2)),  # the same with one that has found no leader
        (80010384, 2, (0,)),  # the data are lost while the first order waits for its ledger
        (80003580, 3, (0, 1)),  # the same before the first cycle
        (80004646, 2, (0, 1)),  # the same, and a node that was cut off from the backend comes back
        (80000819, 2, (4, 5, 6, 7, 9)),  # the same, where a node that was cut off has kept a ledger in mind
        (61000991, 2, (2, 3, 5)),  # the same with a job that succeeds, and a node that has seen it lead
    ],
)
def test_seeds_that_lose_data_and_have_found_something(seed: int, nodes: int, numbers: tuple[int, ...]):
    setup = draw_setup(seed, nodes=nodes, loses_data=True)
    drawn = draw_schedule(setup)
    assert play(setup, [drawn[number] for number in numbers]).complaints == []


@pytest.mark.parametrize(
    ("seed", "nodes", "numbers"),
    [
        (80009884, 3, (0, 1)),  # a node that has met no leader is drained, and ends as stopped
        (80030847, 2, (0, 1)),  # a node that nobody answers leaves by itself, and the other one is too few
        (80008960, 2, (0, 1)),  # the same by a signal; the leader hears later that it had joined
    ],
)
def test_seeds_in_which_nodes_leave_and_have_found_something(seed: int, nodes: int, numbers: tuple[int, ...]):
    setup = draw_setup(seed, nodes=nodes)
    drawn = draw_departures(setup)
    assert play(setup, [drawn[number] for number in numbers]).complaints == []


@pytest.mark.parametrize("first", range(0, LEAVING_SEEDS, SEEDS_PER_TEST))
def test_every_seed_in_which_nodes_leave_keeps_every_promise(first: int):
    played = play_many((first, SEEDS_PER_TEST, None), leaving=True)
    assert not played.failures, "\n\n".join(played.failures)


@pytest.mark.parametrize("kind", sorted(DEPARTURES))
def test_nodes_leave_and_the_job_succeeds_without_them(kind: Kind):
    def has_left(world: World) -> bool:
        ends = {(host.verdict.state, host.verdict.exit_code) for host in world.hosts.values() if host.verdict}
        return kind in {fault.kind for fault in world.struck} and {(STOPPED, 0), (JobState.SUCCEEDED, 0)} <= ends

    assert any(has_left(play_seed(seed, leaving=True)) for seed in range(SEEDS))


@pytest.mark.parametrize("kind", sorted(set(Kind) - DEPARTURES - {Kind.RANK_TERMINATED, Kind.DEFECT}))
def test_every_kind_of_fault_strikes(kind: Kind):
    loses_data = kind is Kind.BACKEND_WIPED_UNSEEN  # the other mix has them all
    setups = (draw_setup(seed, loses_data=loses_data) for seed in range(SEEDS))
    drawn = ((setup, draw_schedule(setup)) for setup in setups)
    played = (play(setup, schedule) for setup, schedule in drawn if any(fault.kind is kind for fault in schedule))
    assert any(kind in {fault.kind for fault in world.struck} for world in played)


def test_where_data_are_lost_often_every_promise_is_kept():
    """Longer: python -m tests.sim --lost-data."""
    played = play_many((0, SEEDS_PER_TEST, None), loses_data=True)
    assert not played.failures, "\n\n".join(played.failures)
    assert sum(played.struck[kind] for kind in DATA_LOST) > SEEDS_PER_TEST / 2


def test_one_node_under_many_faults_keeps_every_promise():
    """Spawners obey late, badly or not at all, and ranks ignore their orders."""
    weights = {
        kind: 1.0 for kind in Kind if kind.startswith(("rank_", "spawner_", "store_", "spawn_", "term_", "evidence_"))
    } | dict.fromkeys((Kind.STOP, Kind.STOP_BY_SIGNAL, Kind.RESTART, Kind.EXCLUDE, Kind.SHUTDOWN), 0.3)
    for seed in range(10_000, 10_100):
        setup = draw_setup(seed, nodes=1)
        world = play(setup, scheduled(setup, random.Random(f"harsh {seed}"), 8, weights))
        assert world.complaints == [], report(world)


def test_a_job_of_many_nodes_outlives_its_faults():
    """Longer: python -m tests.sim --nodes 1000 --large 1000."""
    setup = large_setup(1, nodes=100, faults=100)
    world = play(setup, draw_many(setup, 100))
    assert world.complaints == []
    assert {host.verdict.state for host in world.hosts.values() if host.verdict} == {JobState.SUCCEEDED}


def test_the_same_seed_gives_the_same_run():
    first, second = play_seed(3), play_seed(3)
    assert first.event_log == second.event_log
    assert first.timeline.happened == second.timeline.happened


def test_a_seed_draws_the_same_in_each_process():
    drawn = "print(*faults.draw_schedule(setup.draw_setup(3, loses_data=True)), setup.draw_setup(3))"
    command = [sys.executable, "-c", f"from tests.sim import faults, setup; {drawn}"]
    run = partial(subprocess.run, command, capture_output=True, check=True, text=True)
    assert len({run(env={**os.environ, "PYTHONHASHSEED": number}).stdout for number in "1234"}) == 1


def test_without_faults_every_job_succeeds_in_its_first_cycle():
    for seed in range(20):
        world = play(draw_setup(seed), ())
        assert world.complaints == []
        assert {event.cycle for _, _, event in world.event_log} == {0}


def test_a_failure_is_shown_with_the_faults_that_it_needs(monkeypatch: pytest.MonkeyPatch):
    """A checker that does not accept lost spawners: all other faults are left out."""
    setup = draw_setup(11, nodes=3)
    schedule = (Fault(1.0, Kind.RANK_CRASH, "n0001"), Fault(2.0, Kind.SPAWNER_DIES, "n0002"), *draw_schedule(setup)[:2])
    note_fault = World.note_fault

    def complaining(world: World, fault: Fault) -> None:
        note_fault(world, fault)
        if fault.kind is Kind.SPAWNER_DIES:
            world.complain("Planted", "a spawner was lost")

    monkeypatch.setattr(World, "note_fault", complaining)
    world = play(setup, schedule)
    assert [each.partition(":")[0] for each in world.complaints] == ["Planted"]
    assert [fault.kind for fault in shrunk(setup, schedule, world.complaints[0])] == [Kind.SPAWNER_DIES]
    assert "python -m tests.sim --seed 11 --nodes 3" in report(world)
