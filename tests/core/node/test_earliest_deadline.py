"""The cache of a job's deadlines: it forgets nothing that has changed, and asks nothing that has not."""

from __future__ import annotations

import pytest

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import earliest_deadline, node, node_messages, rank_monitor
from supervisor.core.node.earliest_deadline import Deadlines
from tests.core.one_node import JOB, OneNode, rules, running


def _joined(ranks: int) -> OneNode:
    job = running(rules(ranks, hang_limits=HangLimits(heartbeat_s=10.0)))
    for local_rank in range(ranks):
        progress = Progress(0.0, 0.0, heartbeat_at_s=1.0 + local_rank, heartbeats=1)
        job.send(node_messages.ClientJoined(JOB, 0, local_rank, job.rules.hang_limits, progress))
    return job


def test_a_cache_that_knows_an_earlier_state_says_the_same_as_a_new_one() -> None:
    """Also where the earlier state is another future of the same job, as after a step that was only tried."""
    cache = Deadlines()
    job = _joined(3)
    states = [job.state]
    for local_rank in (0, 2, 1):
        job.exit(0, local_rank, code=1)
        states.append(job.state)
    job.send(node_messages.WorkersEmptied(JOB, 0))
    states.append(job.state)
    dues_s = [Deadlines().of(JOB, each.jobs[JOB]) for each in states]
    assert len(set(dues_s)) > 2
    for at in (0, 1, 2, 3, 4, 2, 0, 4, 1, 1, 3):
        assert cache.of(JOB, states[at].jobs[JOB]) == dues_s[at]


def test_only_the_rank_that_changed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[rank_monitor.State] = []
    next_deadline_s = rank_monitor.next_deadline_s

    def count(state: rank_monitor.State) -> float | None:
        asked.append(state)
        return next_deadline_s(state)

    job = _joined(8)
    monkeypatch.setattr(earliest_deadline.rank_monitor, "next_deadline_s", count)
    cache = Deadlines()
    assert cache.of(JOB, job.state.jobs[JOB]) == 11.0
    assert cache.of(JOB, job.state.jobs[JOB]) == 11.0
    assert len(asked) == 8
    job.send(node_messages.ClientLeft(JOB, 0, 0))
    assert cache.of(JOB, job.state.jobs[JOB]) == 12.0
    assert asked[8:] == [rank_monitor.Silent()]


def test_the_cache_changes_no_decision_and_forgets_jobs_that_are_no_longer_known() -> None:
    job = _joined(1)
    cache = Deadlines()
    cache.of(JOB, job.state.jobs[JOB])
    assert cache == Deadlines()
    forgetful = cache.without([JOB])
    assert forgetful.of(JOB, running(rules(1)).state.jobs[JOB]) is None
    assert cache.of(JOB, job.state.jobs[JOB]) == 11.0
    assert node.next_deadline_s(job.state) == 11.0
