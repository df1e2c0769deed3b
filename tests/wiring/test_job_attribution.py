"""A service is asked about the cycles of a job that this node leads, and no longer once another node leads it."""

from __future__ import annotations

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.config.attribution_settings import Attribution, StopAction
from supervisor.config.job_logs import JobLogs
from supervisor.core.announcements import CycleBegan, CycleEnded, JobEnded, LeadChanged, NodeLost
from supervisor.core.attribution.attribution_requests import STOP, Judged
from supervisor.core.cluster.cluster_messages import JobForbidden, Reported
from supervisor.core.facts import JobState, Verdict
from supervisor.edges.machine.clock import Clock
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.wiring import job_attribution
from supervisor.wiring.job_attribution import Attributions
from tests.engine.test_attributed_job import PlayedService
from tests.engine.world import FakeJournal
from tests.settling import settled

LIMIT_S = 20.0
ASKS = JobSpec("j", ("t.py",), logs=JobLogs("/l/t.log"), attribution=Attribution("http://x", StopAction.NO_RESTART))


async def test_a_job_is_asked_about_while_this_node_leads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = PlayedService(Judged(STOP, "a bad GPU", "rules"))

    def made(_endpoint: str, _who: str) -> PlayedService:
        return service

    monkeypatch.setattr(job_attribution, "AttributionClient", made)
    inbox, clock, journal = EngineInbox(), Clock(), FakeJournal()
    publisher = EventPublisher(journal=journal, clock=clock, node_name="n0", unsent=UnsentEvents(), unkept=None)
    job = JobRecord(ASKS, {}, 5, "/logs")
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            asked = Attributions(tasks, inbox, publisher, clock)
            asked.announced(job, LeadChanged(leads=True))
            asked.announced(job, NodeLost("n1", "silence"))
            asked.announced(job, JobEnded(Verdict(JobState.FAILED, 1, "no")))
            await settled()
            assert service.asked == []
            asked.announced(job, CycleBegan(0, ("n0",)))
            await settled()
            assert service.asked == ["progressive /l/t_cycle0.log"]
            asked.announced(job, CycleEnded(0, ()))
            while not inbox.waiting("j"):  # noqa: ASYNC110 - the inbox tells its one reader
                await anyio.sleep(0.01)
            (forbidden,) = inbox.waiting("j")
            assert isinstance(forbidden, Reported)
            assert isinstance(forbidden.report, JobForbidden)
            assert forbidden.report.reason.endswith("a bad GPU")
            assert "cycle_attributed" in journal.kinds()
            asked.announced(job, LeadChanged(leads=False))
            await asked.aclose()
