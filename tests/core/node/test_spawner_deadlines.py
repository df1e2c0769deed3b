"""Every debt of a spawner has a deadline; then the spawner is killed, and abandoned if that fails."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import pytest

from supervisor.core.facts import Assignment, JobRules, WorkerExit
from supervisor.core.node import spawner_deadlines as watch
from supervisor.core.node.node_messages import (
    DeadlineReached,
    EndSpawner,
    KillSpawner,
    KillTree,
    PrepareStore,
    Publish,
    RespawnWorkers,
    SpawnerLost,
    SpawnerReady,
    SpawnFailed,
    SpawnWorkers,
    StartSpawner,
    StoreFailed,
    StoreReady,
    WorkerEndSeen,
    WorkerExited,
    WorkersEmptied,
    WorkerSpawned,
)
from tests.core.playbook import Playbook

JOB = "job"
SPAWN = SpawnWorkers(JOB, Assignment(3), "h", 1)
EXITED = WorkerExited(JOB, 3, WorkerExit(1, 1, 101, 0, None, 0.0))


def started() -> Playbook[watch.State]:
    play = Playbook(watch.step, watch.initial_state(), cycle=3, rules=JobRules(JOB, 2))
    return play >> StartSpawner(JOB, 1)


def ready(*, starts_workers: bool = True) -> Playbook[watch.State]:
    play = started() >> SpawnerReady(JOB, 1, starts_workers=starts_workers)
    assert watch.next_deadline_s(play.state) is None, "a spawner that owes nothing is left alone"
    return play


DEBTS = [
    (PrepareStore(JOB, 3), (StoreReady(JOB, 3, "h", 1),), watch.STORE_S, "serve the store of cycle 3"),
    (PrepareStore(JOB, 3), (StoreFailed(JOB, 3, "no port"),), watch.STORE_S, "serve the store of cycle 3"),
    (
        SPAWN,
        (WorkerSpawned(JOB, 3, 0, 100), SpawnFailed(JOB, 3, 1, "no", 1)),
        watch.SPAWN_S,
        "start the workers of cycle 3",
    ),
    (RespawnWorkers(JOB, 3, (1,)), (WorkerSpawned(JOB, 3, 1, 100),), watch.SPAWN_S, "start the workers of cycle 3"),
    (WorkerEndSeen(JOB, 3, 1), (EXITED,), watch.REPORT_S, "report the end of the process of local rank 1"),
    (KillTree(JOB, 3), (WorkersEmptied(JOB, 3),), watch.EMPTY_S, "end what is left of cycle 3"),
]


@pytest.mark.parametrize(("asked", "answers", "limit_s", "what"), DEBTS)
def test_what_is_answered_is_owed_no_more(
    asked: watch.Asked, answers: tuple[watch.Answered, ...], limit_s: float, what: str
) -> None:
    play = ready() >> asked
    for answer in answers:
        assert watch.next_deadline_s(play.state) == limit_s
        play.at(limit_s - 1.0) >> DeadlineReached() << ()
        play >> answer << ()
    assert watch.next_deadline_s(play.state) is None


@pytest.mark.parametrize(("asked", "answers", "limit_s", "what"), DEBTS)
def test_what_is_not_answered_in_time_costs_the_spawner_its_life(
    asked: watch.Asked, answers: tuple[watch.Answered, ...], limit_s: float, what: str
) -> None:
    play = ready() >> asked
    for answer in answers[:-1]:
        play >> answer
    play.at(limit_s) >> DeadlineReached()
    reason = f"it was asked to {what} and has not answered for {limit_s:.0f} s"
    assert play.of(KillSpawner) == [KillSpawner(JOB, reason)]
    assert [each.event.kind for each in play.of(Publish)] == ["spawner_killed"]
    assert watch.next_deadline_s(play.state) == limit_s + watch.KILL_S


@pytest.mark.parametrize(
    ("owed", "limit_s"), [(WorkerEndSeen(JOB, 3, 0), watch.REPORT_S), (KillTree(JOB, 3), watch.EMPTY_S)]
)
def test_a_spawner_that_still_starts_workers_is_busy_and_not_silent(owed: watch.Event, limit_s: float) -> None:
    """A thousand of them take longer than the report of the first one's end may."""
    play = ready() >> SPAWN >> WorkerSpawned(JOB, 3, 0, 100) >> owed
    play.at(limit_s - 1.0) >> WorkerSpawned(JOB, 3, 1, 101) << ()
    play.at(limit_s) >> DeadlineReached() << ()
    play >> WorkerSpawned(JOB, 3, 1, 101) << ()  # reported twice: postpones nothing
    play.at(2 * limit_s - 1.0) >> DeadlineReached()
    assert play.of(KillSpawner)


def test_a_spawner_that_does_not_come_up_is_killed() -> None:
    play = started()
    play.at(watch.START_S) >> DeadlineReached()
    assert play.of(KillSpawner)
    play >> SpawnerLost(JOB, 1, "it was killed by SIGKILL") << ()
    assert watch.next_deadline_s(play.state) is None


def test_one_that_cannot_even_be_killed_is_given_up() -> None:
    play = ready() >> KillTree(JOB, 3)
    play.at(watch.EMPTY_S) >> DeadlineReached()
    play.at(watch.EMPTY_S + watch.KILL_S) >> DeadlineReached()
    (given_up,) = play.of(watch.GiveUp)
    assert given_up.number == 1
    assert given_up.reason.endswith("SIGKILL has not ended it within 20 s")
    assert watch.next_deadline_s(play.state) is None


def test_the_end_is_owed_and_not_waited_for_while_it_still_loads() -> None:
    play = ready() >> EndSpawner(JOB) << ()
    assert watch.next_deadline_s(play.state) == watch.END_S
    play = started() >> EndSpawner(JOB)
    assert play.last == (KillSpawner(JOB, "the job has ended"),)


def test_what_could_not_be_asked_at_all_is_no_different() -> None:
    play = ready() >> watch.SpawnerBroken("its frame was too long")
    assert play.of(KillSpawner) == [KillSpawner(JOB, "its frame was too long")]
    play >> watch.SpawnerBroken("again") << ()


def test_the_end_of_a_cycle_pays_for_its_workers() -> None:
    play = ready() >> SPAWN
    play >> WorkerEndSeen(JOB, 3, 0)
    play >> KillTree(JOB, 3)
    play >> WorkersEmptied(JOB, 3) << ()
    assert watch.next_deadline_s(play.state) is None


def test_the_same_question_twice_keeps_the_first_deadline() -> None:
    play = ready() >> KillTree(JOB, 3)
    play.at(5.0) >> KillTree(JOB, 3)
    assert watch.next_deadline_s(play.state) == watch.EMPTY_S


def test_ranks_that_others_start_come_when_they_like() -> None:
    play = ready(starts_workers=False) >> SPAWN << ()
    assert watch.next_deadline_s(play.state) is None


def test_a_start_that_is_told_of_twice_pays_for_no_other_rank() -> None:
    play = ready() >> SPAWN >> WorkerSpawned(JOB, 3, 0, 100) >> WorkerSpawned(JOB, 3, 0, 100)
    assert watch.next_deadline_s(play.state) == watch.SPAWN_S
    assert watch.next_deadline_s((play >> WorkerSpawned(JOB, 3, 1, 101)).state) is None


def test_what_a_spawner_that_is_being_killed_still_says_begins_nothing() -> None:
    living, killing = ready().state, watch.Killing(1, "it is silent", 20.0)
    for begins in (SpawnerReady(JOB, 1), StoreReady(JOB, 3, "h", 1), StoreFailed(JOB, 3, "no"), WorkersEmptied(JOB, 3)):
        assert (watch.is_moot(living, begins), watch.is_moot(killing, begins)) == (False, True)
    for tells in (EXITED, SpawnerLost(JOB, 1, "gone"), WorkerSpawned(JOB, 3, 0, 100)):
        assert not watch.is_moot(killing, tells)
