"""Stops and signals in every phase of a job: what is forwarded, how long is the wait, how does it end?"""

from __future__ import annotations

import signal as signals
from collections.abc import Callable

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import NodeFailed, NodeStands, StopAsked
from supervisor.core.facts import HangLimits, JobState, Verdict
from supervisor.core.node import node, node_messages
from supervisor.core.node.node_messages import (
    EndSpawner,
    FinishJob,
    KillTree,
    SignalWorkers,
    StopRequested,
    WorkersEmptied,
)
from supervisor.core.orders import Introduce
from tests.core.one_node import JOB, NOW, OneNode, hang, in_back_off, in_first_cycle, joined, rules, running

SIGTERM = int(signals.SIGTERM)
SIGINT = int(signals.SIGINT)
TERM_ALL = SignalWorkers(JOB, 0, SIGTERM, resume=True, grace_s=15.0)
HEARTBEAT_5 = HangLimits(heartbeat_s=5.0)


def before_spawner() -> OneNode:
    return OneNode(rules(2))


def before_store() -> OneNode:
    return OneNode(rules(2)).send(node_messages.SpawnerReady(JOB, NOW))


def starting() -> OneNode:
    return before_store().send(node_messages.StoreReady(JOB, 0, "h", 1), node_messages.WorkerSpawned(JOB, 0, 0, 100))


def examining() -> OneNode:
    return hang(joined(running(rules(2, hang_limits=HEARTBEAT_5)), 0, 1), 1, at=5.0)


def restarting() -> OneNode:
    return running(rules(2)).exit(0, 1, code=1)


@pytest.mark.parametrize("phase", [before_spawner, in_back_off])
def test_a_stop_where_nothing_runs_ends_the_job_at_once(phase: Callable[[], OneNode]) -> None:
    job = phase()
    job.send(StopRequested(JOB, "the launcher got SIGTERM", SIGTERM))
    verdict = Verdict(JobState.STOPPED, 128 + SIGTERM, "the launcher got SIGTERM")
    assert job.of(FinishJob) == [FinishJob(JOB, verdict)]
    assert job.actions[0] == EndSpawner(JOB)


def test_a_signal_is_told_with_whom_it_waits_for_and_how_long() -> None:
    job = running(rules(2)).send(StopRequested(JOB, "got SIGINT", SIGINT))
    job.send(StopRequested(JOB, "got SIGINT", SIGINT), at=1.0)
    assert job.said("stop_requested") == [
        "got SIGINT: ranks 0 to 1 have 1800 s to end; another one kills them at once",
        "got SIGINT again: ranks 0 to 1 are killed",
    ]
    asked = running(rules(2)).send(StopRequested(JOB, "holdfast stop", 0))
    assert asked.said("stop_requested") == ["holdfast stop"]


def test_a_signal_that_is_one_request_with_the_one_before_is_not_said_to_kill() -> None:
    job = running(rules(2)).send(StopRequested(JOB, "got SIGTERM", SIGTERM))
    job.send(StopRequested(JOB, "got SIGINT", SIGINT), at=0.05)
    assert job.of(KillTree) == []
    assert job.said("stop_requested")[1:] == ["got SIGINT, too: signals this close are one request"]


def test_a_signal_names_only_ranks_that_still_run() -> None:
    job = running(rules(3)).exit(0, 1, code=0).send(StopRequested(JOB, "got SIGINT", SIGINT))
    assert job.said("stop_requested") == ["got SIGINT: ranks 0, 2 have 1800 s to end; another one kills them at once"]
    alone = running(rules(2)).exit(0, 0, code=0).send(StopRequested(JOB, "got SIGINT", SIGINT))
    assert alone.said("stop_requested") == ["got SIGINT: rank 1 has 1800 s to end; another one kills it at once"]


def test_a_signal_from_a_terminal_brings_its_own_time() -> None:
    job = running(rules(1)).send(StopRequested(JOB, "got SIGINT", SIGINT, grace_s=30.0))
    assert job.said("stop_requested") == ["got SIGINT: rank 0 has 30 s to end; another one kills it at once"]
    job.send(node_messages.DeadlineReached(), at=29.9)
    assert job.of(KillTree) == []
    job.send(node_messages.DeadlineReached(), at=30.0)
    assert job.of(KillTree) == [KillTree(JOB, 0)]


def test_a_stop_before_the_workers_ends_the_store() -> None:
    job = before_store().send(StopRequested(JOB, "signalled", SIGINT))
    assert job.actions == [KillTree(JOB, 0)]
    job.send(node_messages.StoreReady(JOB, 0, "h", 1))
    assert job.actions == []
    job.send(WorkersEmptied(JOB, 0))
    assert job.verdict() == Verdict(JobState.STOPPED, 128 + SIGINT, "signalled")


@pytest.mark.parametrize("phase", [starting, in_first_cycle, examining, restarting])
def test_a_signal_is_forwarded_in_every_phase_with_workers(phase: Callable[[], OneNode]) -> None:
    job = phase()
    job.send(StopRequested(JOB, "signalled", SIGINT))
    assert job.actions == [SignalWorkers(JOB, 0, SIGINT, resume=True, grace_s=1800.0)]
    assert job.view().state is JobState.STOPPING
    job.send(WorkersEmptied(JOB, 0))  # nobody has asked for it yet
    assert job.verdict() is None
    for local_rank in (0, 1):
        job.exit(0, local_rank, signal=SIGINT)
    assert job.actions in ([KillTree(JOB, 0)], [])
    job.send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.state, verdict.exit_code) == (JobState.STOPPED, 128 + SIGINT)
    assert coordinator.restarts_used(job.coordinator) <= 1, "a stop uses no restart"


def test_a_forwarded_signal_that_all_ranks_answer_with_0_is_a_success() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "signalled", SIGTERM))
    job.exit(0, 0, code=0).exit(0, 1, code=0).send(WorkersEmptied(JOB, 0))
    assert job.verdict() == Verdict(JobState.SUCCEEDED, 0, "signalled; all ranks then exited with code 0")


def test_a_command_stops_with_its_own_grace_and_exit_code() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "stopped by kim"))
    assert job.actions == [TERM_ALL]
    job.pass_to(14.9)
    assert job.actions == []
    job.pass_to(15.0)
    assert job.actions == [KillTree(JOB, 0)]
    job.send(WorkersEmptied(JOB, 0))
    assert job.verdict() == Verdict(JobState.STOPPED, 93, "stopped by kim")


def test_a_signal_has_its_own_longer_grace() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "signalled", SIGTERM))
    job.pass_to(1799.0)
    assert job.actions == []
    job.pass_to(1800.0)
    assert job.actions == [KillTree(JOB, 0)]


def test_a_second_signal_kills_at_once_but_not_the_echo_of_the_first() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "signalled", SIGINT))
    job.send(StopRequested(JOB, "signalled", SIGINT), at=0.05)
    assert job.actions == []
    job.send(StopRequested(JOB, "signalled again", SIGINT), at=0.5)
    assert job.actions == [KillTree(JOB, 0)]
    job.send(WorkersEmptied(JOB, 0))
    assert job.verdict() == Verdict(JobState.STOPPED, 128 + SIGINT, "signalled")


def test_a_sigterm_that_a_script_passes_on_late_kills_nobody() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "got SIGTERM", SIGTERM))
    job.send(StopRequested(JOB, "got SIGTERM", SIGTERM), at=1.9)
    assert job.of(KillTree) == []
    assert job.said("stop_requested") == [
        "got SIGTERM: ranks 0 to 1 have 1800 s to end; another one after 2 s kills them at once",
        "got SIGTERM, too: signals this close are one request",
    ]
    job.send(StopRequested(JOB, "got SIGTERM", SIGTERM), at=2.0)
    assert job.actions == [KillTree(JOB, 0)]
    by_hand = in_first_cycle().send(StopRequested(JOB, "got SIGINT", SIGINT))
    by_hand.send(StopRequested(JOB, "got SIGTERM", SIGTERM), at=0.5)
    assert by_hand.actions == [KillTree(JOB, 0)]


@pytest.mark.parametrize("of_node", [True, False], ids=["the supervisor ends", "holdfast stop"])
@pytest.mark.parametrize("again_s", [0.3, 1.0])
def test_a_signal_after_a_stop_without_one_is_a_first_signal_and_prolongs_nothing(
    *, of_node: bool, again_s: float
) -> None:
    """A reboot, or a hook of a pod, ends the supervisor or types `holdfast stop` before the launcher is signalled."""
    job = running(rules(2)).send(StopRequested(JOB, "it ends", of_node=of_node))
    signalled = StopRequested(JOB, "got SIGTERM", SIGTERM, of_node=True)
    job.send(signalled, at=again_s)
    assert job.of(KillTree) == []
    said = "got SIGTERM: ranks 0 to 1 have the rest of their time to end; another one after 2 s kills them at once"
    assert job.said("stop_requested")[1:] == [said]
    job.pass_to(14.9)
    assert job.of(KillTree) == []
    job.pass_to(15.0)
    assert job.actions == [KillTree(JOB, 0)]
    again = running(rules(2)).send(StopRequested(JOB, "it ends", of_node=of_node)).send(signalled, at=again_s)
    again.send(signalled, at=again_s + 3.0)
    assert again.actions == [KillTree(JOB, 0)]


def test_a_sigkill_by_command_kills_the_whole_job_at_once() -> None:
    job = running(rules(2)).send(StopRequested(JOB, "got SIGTERM", SIGTERM))
    job.send(StopRequested(JOB, "by kim", int(signals.SIGKILL)), at=0.05)
    assert job.actions == [KillTree(JOB, 0)]
    first = running(rules(2)).send(StopRequested(JOB, "by kim", int(signals.SIGKILL)))
    assert first.said("stop_requested") == ["by kim: ranks 0 to 1 are killed"]
    assert first.actions == [KillTree(JOB, 0)]
    first.send(WorkersEmptied(JOB, 0))
    assert first.verdict() == Verdict(JobState.STOPPED, 137, "by kim")


def test_a_command_after_a_signal_shortens_its_grace() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "signalled", SIGINT))
    job.send(StopRequested(JOB, "stopped by kim"), at=2.0)
    assert job.actions == [TERM_ALL]
    job.pass_to(17.0)
    assert job.actions == [KillTree(JOB, 0)]


def test_a_signal_does_not_change_a_verdict_that_was_reached() -> None:
    job = running(rules(2, max_restarts=0)).exit(0, 0, code=1)
    job.send(StopRequested(JOB, "signalled", SIGINT))
    job.exit(0, 1, signal=SIGINT).send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.state, verdict.exit_code) == (JobState.FAILED, 1)


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_a_rank_that_a_scheduler_ends_first_costs_the_others_no_time_to_save(max_restarts: int) -> None:
    job = running(rules(2, max_restarts=max_restarts)).exit(0, 0, signal=SIGTERM)
    assert job.of(SignalWorkers) == [TERM_ALL]
    job.send(StopRequested(JOB, "signalled", SIGTERM), at=0.1)
    job.pass_to(1800.0)
    assert job.of(KillTree) == []
    job.exit(0, 1, code=0).send(WorkersEmptied(JOB, 0))
    assert job.verdict() == Verdict(JobState.STOPPED, 128 + SIGTERM, "signalled")


def test_a_stop_reaches_the_ranks_of_its_node_although_no_leader_answers() -> None:
    job, signalled = in_first_cycle(), StopRequested(JOB, "signalled", SIGTERM, of_node=True)
    state, actions = node.step(job.state, signalled, now_s=1.0)
    send = SignalWorkers(JOB, 0, SIGTERM, resume=True, grace_s=1800.0)
    assert [each for each in actions if isinstance(each, SignalWorkers)] == [send]
    assert [each.report for each in actions if isinstance(each, node_messages.TellCoordinator)] == [
        StopAsked("signalled", SIGTERM)
    ]
    for at_s, kills in ((1.05, []), (2.9, []), (3.0, [KillTree(JOB, 0)])):
        state, actions = node.step(state, signalled, now_s=at_s)
        assert [each for each in actions if isinstance(each, KillTree)] == kills, at_s
        (told,) = [each.report for each in actions if isinstance(each, node_messages.TellCoordinator)]
        assert isinstance(told, StopAsked)
        assert told.at_once is bool(kills), "what is one request with the first signal kills nobody"
    state, actions = node.step(state, node_messages.Ordered(JOB, Introduce()), now_s=3.5)
    (stands,) = [each.report for each in actions if isinstance(each, node_messages.TellCoordinator)]
    assert isinstance(stands, NodeStands)
    assert (stands.stop_reason, stands.stop_signal) == ("signalled", SIGTERM)


@pytest.mark.parametrize(("code", "signal", "may_be_stop"), [(None, 15, True), (143, None, True), (None, 9, False)])
def test_a_rank_that_ends_as_if_stopped_is_reported_as_such(code: int | None, signal: int | None, may_be_stop: bool):
    job = in_first_cycle().exit(0, 0, code=code, signal=signal)
    assert [each.may_be_stop for each in job.told if isinstance(each, NodeFailed)] == [may_be_stop]
