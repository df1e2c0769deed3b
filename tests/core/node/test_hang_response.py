"""From a verdict to one fault: evidence first, then the signal."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import signal as signals

from supervisor.core.facts import JobRules, WorkerExit
from supervisor.core.node import hang_response as hangs
from supervisor.core.node.hang_response import EvidenceTaken, WantStacks
from supervisor.core.node.node_messages import DeadlineReached
from supervisor.core.worker_messages import HangEnded, HangFaulted, HangFound, KillRanks, RankExited
from tests.core.playbook import Playbook

JOB = "job"
TERM, KILL = int(signals.SIGTERM), int(signals.SIGKILL)


def quiet(signal: int = KILL, budget_s: float = 0.25) -> Playbook[hangs.State]:
    rules = JobRules(JOB, 8, rank_termination_signal=signal, evidence_budget_s=budget_s)
    return Playbook(hangs.step, hangs.initial_state(), cycle=3, rules=rules)


def found(local_rank: int) -> hangs.RankHung:
    return hangs.RankHung(local_rank, 10 + local_rank, "is silent")


def exited(local_rank: int, code: int | None) -> RankExited:
    return RankExited(WorkerExit(local_rank, 10 + local_rank, 1, code, None if code is not None else TERM, 0.0))


def test_evidence_comes_before_the_signal() -> None:
    play = quiet()
    play >> found(1)
    play.has(HangFound("rank 11 is silent"), WantStacks(1, "rank 11 is silent")).lacks(KillRanks)
    play >> EvidenceTaken()
    play.has(KillRanks((1,), KILL, hangs.ESCALATION_S), HangFaulted("rank 11 is silent"))
    play >> found(2) << ()


def test_the_fault_is_the_verdict_on_all_ranks_of_the_moment() -> None:
    for signal in (KILL, TERM):
        play = quiet(signal)
        play >> found(1)
        play >> found(2) << ()  # the one verdict mentions it
        play >> EvidenceTaken("rank 13 is stopped; ranks 11 and 12 wait for it")
        play.has(KillRanks((1, 2), signal, hangs.ESCALATION_S))
        if signal == TERM:
            play >> exited(1, None) << ()
            play >> exited(2, None)
        play.has(HangFaulted("rank 13 is stopped; ranks 11 and 12 wait for it"))
        assert [hangs.is_hung(play.state, each) for each in (0, 1, 2)] == [False, True, True]


def test_late_evidence_is_not_waited_for() -> None:
    play = quiet()
    play >> found(1)
    play.at(0.44) >> DeadlineReached() << ()
    play.at(0.46) >> DeadlineReached()
    play.has(KillRanks((1,), KILL, hangs.ESCALATION_S), HangFaulted("rank 11 is silent"))
    play >> EvidenceTaken() << ()


def test_without_a_budget_there_is_no_evidence() -> None:
    play = quiet(budget_s=0.0)
    play >> found(1)
    play.has(KillRanks((1,), KILL, hangs.ESCALATION_S), HangFaulted("rank 11 is silent")).lacks(WantStacks)


def test_many_hung_ranks_are_one_fault_with_the_first_ones_named() -> None:
    play = quiet()
    for local_rank in range(6):
        play >> found(local_rank)
    play.lacks((HangFound, WantStacks))
    play >> EvidenceTaken()
    (fault,) = play.of(HangFaulted)
    assert fault.reason == "rank 10 is silent; rank 11 is silent; rank 12 is silent; rank 13 is silent; and 2 more hung"


def test_a_gentle_signal_is_waited_for() -> None:
    play = quiet(TERM)
    play >> found(1)
    play >> found(2)
    play.at(0.1) >> EvidenceTaken()
    play.has(KillRanks((1, 2), TERM, hangs.ESCALATION_S)).lacks(HangFaulted)
    play >> exited(1, None) << ()
    play >> exited(2, 0) << HangFaulted("rank 11 is silent; rank 12 is silent")


def test_a_rank_that_has_ended_by_itself_is_not_waited_for() -> None:
    play = quiet(TERM)
    play >> found(1)
    play >> found(2)
    play >> exited(1, None) << ()
    play >> exited(3, None) << ()
    play >> EvidenceTaken()
    play.has(KillRanks((2,), TERM, hangs.ESCALATION_S)).lacks(HangFaulted)
    play >> exited(2, None) << HangFaulted("rank 11 is silent; rank 12 is silent")


def test_if_all_hung_ranks_have_ended_the_fault_is_reported_at_once() -> None:
    for event in (EvidenceTaken(), DeadlineReached()):
        play = quiet(TERM)
        play >> found(1)
        play >> exited(1, None) << ()
        play.at(0.46) >> event << HangFaulted("rank 11 is silent")
        assert hangs.is_hung(play.state, 1)


def test_a_gentle_signal_that_is_ignored_is_a_fault_at_its_deadline() -> None:
    play = quiet(TERM)
    play >> found(1)
    play >> EvidenceTaken()
    assert hangs.next_deadline_s(play.state) == hangs.ESCALATION_S
    play.at(hangs.ESCALATION_S) >> DeadlineReached() << HangFaulted("rank 11 is silent")


def test_a_rank_that_finishes_in_the_last_moment_is_spared() -> None:
    play = quiet()
    play >> found(1)
    play >> found(2)
    play >> exited(1, 0) << ()
    play >> exited(2, 0)
    play.has(HangEnded("rank 12 exited with code 0 before it was ended for its hang"))
    assert hangs.next_deadline_s(play.state) is None


def test_nothing_follows_once_all_workers_are_being_ended() -> None:
    play = quiet()
    play >> found(1)
    play >> hangs.WorkersEnding() << ()
    assert hangs.next_deadline_s(play.state) is None
    play >> found(2) << ()
    play.at(9.0) >> DeadlineReached() << ()
