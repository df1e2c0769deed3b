"""Ranks have not ended by SIGTERM, and none of them can go on: are they ended at once, and only then?"""

from __future__ import annotations

import signal as signals

import msgspec
import pytest

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.node.node_messages import (
    CollectEvidence,
    Event,
    EvidenceCollected,
    KillTree,
    Ordered,
    RestartRequested,
    StopRequested,
    WorkersEmptied,
)
from supervisor.core.orders import EndDeadlocked
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts
from tests.core.one_node import JOB, OneNode, rules, running

SIGTERM = int(signals.SIGTERM)
WAITS = (Frame("/app/train.py", "train", 3), Frame("/x/torch/distributed/distributed_c10d.py", "all_reduce", 9))
SAVES = (*WAITS, Frame("/app/train.py", "save", 20))  # its handler
STUCK = ProcessFacts(ProcessState.SLEEPING, is_still=True, is_idle=True)


def restarting() -> OneNode:
    """Rank 1 has failed, and rank 0 is asked about."""
    job = running(rules(2)).exit(0, 1, code=1)
    job.pass_to(0.3)
    assert job.of(CollectEvidence) == [CollectEvidence(JOB, 0, 1.4, apart_s=0.7)]
    return job


def seen(*frames: Frame, process: ProcessFacts = STUCK) -> EvidenceCollected:
    stack = StackGroup((0,), "a stack", frames)
    return EvidenceCollected(JOB, 0, Evidence((stack,), facts=(RankFacts(0, process),)))


def test_a_rank_that_waits_for_one_that_is_gone_is_ended_with_a_sentence() -> None:
    job = restarting().send(seen(*WAITS), at=1.1)
    assert job.of(KillTree) == [KillTree(JOB, 0)]
    assert job.said("deadlock_ended") == [
        "rank 0 waits in all_reduce for ranks that are gone, so no handler for SIGTERM can run there; "
        "rank 0 is ended without waiting any longer"
    ]
    job.send(WorkersEmptied(JOB, 0)).run_cycle(1)


@pytest.mark.parametrize(
    "look", [seen(*SAVES), seen(), seen(*WAITS, process=msgspec.structs.replace(STUCK, is_idle=False))]
)
def test_a_rank_that_may_be_saving_has_the_whole_time(look: EvidenceCollected) -> None:
    job = restarting().send(look, at=1.1)
    assert not job.of(KillTree)
    job.pass_to(14.9)
    assert not job.of(KillTree)
    job.pass_to(15.0)
    assert job.of(KillTree)


@pytest.mark.parametrize(
    "request_", [
        StopRequested(JOB, "holdfast stop", 0), StopRequested(JOB, "preempted", SIGTERM),
        RestartRequested(JOB, "holdfast restart"),
    ]
)  # fmt: skip
def test_nobody_looks_at_ranks_that_are_stopped_or_restarted_by_request(request_: Event) -> None:
    job = running(rules(2)).send(request_)
    job.pass_to(14.9)
    assert not job.of(CollectEvidence)
    assert not job.of(KillTree)


def test_a_fault_that_may_be_a_stop_by_the_scheduler_ends_nobody_early() -> None:
    job = running(rules(2)).exit(0, 1, signal=SIGTERM)
    job.pass_to(14.9)
    assert not job.of(CollectEvidence)


def test_a_stop_during_a_restart_gives_the_ranks_their_time() -> None:
    job = restarting().send(StopRequested(JOB, "holdfast stop", 0), at=0.5)
    job.send(seen(*WAITS), at=1.1)
    job.send(Ordered(JOB, EndDeadlocked(0, "it crossed the stop")), at=1.2)
    assert not job.of(KillTree)


def test_an_order_about_another_cycle_ends_nobody() -> None:
    job = restarting().send(Ordered(JOB, EndDeadlocked(-1, "an earlier cycle")), at=1.0)
    assert not job.of(KillTree)
    assert job.of(cluster.Send) == []
