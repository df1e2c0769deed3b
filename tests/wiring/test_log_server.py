"""Which log processes run on a node that leads a job, and on one that follows, and who is told before they end?"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from supervisor.config import JobSpec
from supervisor.config.job_logs import JobLogs, LogServer, log_sender_socket
from supervisor.config.job_spec import Nodes
from supervisor.core.announcements import JobEnded, LeadChanged
from supervisor.core.facts import JobEvent, JobState, Verdict
from supervisor.edges.machine.logs import log_tier_supervision
from supervisor.engine.job_record import JobRecord
from supervisor.engine.output_plan import Console
from supervisor.wiring.log_server import LogFunnel
from supervisor.wiring.supervisor_paths import SupervisorPaths
from tests.settling import settled

NODES = Nodes(2, 2, "10.0.0.1", 1, "10.0.0.1")
JOB = JobSpec(
    "j", ("t.py",), nodes=NODES, logs=JobLogs(cycle_prefix="/logs/t.log"), log_server=LogServer(enabled=True, leaves=1)
)
ENDED = JobEnded(Verdict(JobState.SUCCEEDED, 0, "all ranks ended"))


class Tier:
    """Replaces a process."""

    made: list[Tier]
    order: list[str]

    def __init__(self, settings: bytes, **_: object) -> None:
        self.settings: dict[str, Any] = msgspec.json.decode(settings)
        self.told: list[dict[str, str]] = []
        self.ended = anyio.Event()
        Tier.made.append(self)

    @property
    def name(self) -> str:
        return str(self.settings["tier"])

    def tell(self, line: bytes) -> None:
        self.told.append(msgspec.json.decode(line))

    def finish(self, *, spent_s: float = 0.0) -> None:
        Tier.order.append(self.name)
        self.ended.set()

    async def run(self) -> bool:
        await self.ended.wait()
        return True


@asynccontextmanager
async def funnel_of(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[LogFunnel, JobRecord, Path]]:
    Tier.made, Tier.order = [], []
    monkeypatch.setattr(log_tier_supervision, "LogTier", Tier)
    job, published = JobRecord(spec, {}, 5, "/logs"), list[JobEvent]()
    with tempfile.TemporaryDirectory() as name:
        paths = SupervisorPaths(Path(name), Path(name), Console(present=False), private=True)
        paths.worker_socket.parent.mkdir()
        async with anyio.create_task_group() as tasks:
            yield (
                LogFunnel(
                    tasks,
                    {"j": job},
                    lambda _, event: published.append(event),
                    paths=paths,
                    node_requests=None,
                    on_finish=lambda job_id: Tier.order.append(f"words of {job_id}"),
                ),
                job,
                Path(log_sender_socket(str(paths.worker_socket), "j")),
            )
            tasks.cancel_scope.cancel()
    assert published == []


async def test_a_job_without_a_log_server_has_no_process(monkeypatch: pytest.MonkeyPatch):
    async with funnel_of(JobSpec("j", ("t.py",)), monkeypatch) as (funnel, job, sender_socket):
        funnel.submitted("j")
        funnel.announced(job, LeadChanged(leads=True))
        funnel.announced(job, ENDED)
        assert (Tier.made, Tier.order, sender_socket.exists()) == ([], [], False)


async def test_the_node_that_leads_has_leaves_and_root_too_and_the_words_end_first(monkeypatch: pytest.MonkeyPatch):
    async with funnel_of(JOB, monkeypatch) as (funnel, job, sender_socket):
        funnel.submitted("j")
        assert sender_socket.is_socket()
        (sender,) = Tier.made
        assert (sender.name, sender.told[-1]) == ("sender", {"address": "10.0.0.1:50051"})
        funnel.announced(job, LeadChanged(leads=True))
        assert [tier.name for tier in Tier.made] == ["sender", "root", "leaf"]
        assert Tier.made[2].told == [{"address": "10.0.0.1:50052"}]
        funnel.announced(job, ENDED)
        await settled()
        assert Tier.order == ["words of j", "sender", "leaf", "root"]
        assert not sender_socket.exists()


@pytest.mark.parametrize(("cycle", "began_ms"), [(-1, 7), (2, 0)])
async def test_a_late_node_that_comes_to_lead_does_not_take_what_was_printed_before_it_came_for_an_earlier_run_s(
    monkeypatch: pytest.MonkeyPatch, cycle: int, began_ms: int
):
    async with funnel_of(JOB, monkeypatch) as (funnel, job, _):
        job.submitted_at_ns = 7 * 10**6
        funnel.submitted("j")
        funnel.announced(job, LeadChanged(leads=True, cycle=cycle))
        (root,) = (each for each in Tier.made if each.name == "root")
        assert root.settings["run_began_ms"] == began_ms
        funnel.announced(job, ENDED)
        await settled()


async def test_the_servers_of_a_node_that_no_longer_leads_end_at_once(monkeypatch: pytest.MonkeyPatch):
    async with funnel_of(JOB, monkeypatch) as (funnel, job, _):
        funnel.submitted("j")
        funnel.announced(job, LeadChanged(leads=True))
        funnel.announced(job, LeadChanged(leads=False))
        funnel.announced(job, LeadChanged(leads=True))
        assert [tier.name for tier in Tier.made] == ["sender", "root", "leaf", "root", "leaf"]
        funnel.finish_all()
        await settled()
        assert Tier.order == ["words of j", "sender", "leaf", "root"]
