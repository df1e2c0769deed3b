"""Events of one job stay in order; another job's wait for no more than a share of them."""

from __future__ import annotations

import pytest

from supervisor.core.cluster.cluster_messages import Reported, StopAsked
from supervisor.core.facts import JobRules
from supervisor.core.node import node_messages
from supervisor.engine.engine_inbox import EngineEvent, EngineInbox
from supervisor.engine.fair_queue import SHARE_MAX


@pytest.mark.parametrize(
    ("event", "job_id"),
    [
        (Reported("j", StopAsked("enough", 0)), "j"),
        (node_messages.JobSubmitted(JobRules("j", 1)), "j"),
        (node_messages.RestartRequested("j", "again"), "j"),
        (node_messages.DeadlineReached(), ""),
    ],
)
async def test_an_event_waits_in_the_lane_of_its_job(event: EngineEvent, job_id: str) -> None:
    inbox = EngineInbox()
    inbox.post(event)
    assert inbox.waiting(job_id) == [event]


async def test_a_loud_job_delays_another_one_by_its_share_at_most() -> None:
    inbox = EngineInbox()
    for _ in range(2 * SHARE_MAX):
        inbox.post(Reported("loud", StopAsked("enough", 0)))
    quiet = node_messages.RestartRequested("quiet", "again")
    inbox.post(quiet)
    assert inbox.take().index(quiet) == SHARE_MAX
