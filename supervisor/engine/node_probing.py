"""What is found out about this node and its GPUs for a job, and when is a look that hangs given up?

A check may hang, and the wait for GPU memory may be long. Both end with the job, or with the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio

from supervisor.core.node import node_messages
from supervisor.core.node_check_facts import HealthFinding
from supervisor.engine.job_record import JobRecord
from supervisor.ports.edges import Gpus, NodeChecks

Post = Callable[[node_messages.Event], None]


class NodeProbing:
    """Looks for all jobs. Each look is a task of the caller."""

    def __init__(self, *, checks: NodeChecks, gpus: Gpus, post: Post) -> None:
        self._checks = checks
        self._gpus = gpus
        self._post = post
        self._under_way: dict[str, set[anyio.CancelScope]] = {}

    async def check(self, job: JobRecord, action: node_messages.CheckNode) -> None:
        def report(findings: tuple[HealthFinding, ...], *, is_last: bool = False) -> None:
            self._post(node_messages.NodeChecked(action.job_id, action.check, action.number, findings, is_last))

        with self._given_up_with(action.job_id):
            report(await self._checks.run(job.spec, action.check, report), is_last=True)

    async def await_memory(self, job: JobRecord, action: node_messages.AwaitGpuMemory) -> None:
        with self._given_up_with(action.job_id):
            report = await self._gpus.await_memory(job.spec, action.rules, cgroups=tuple(job.cgroups))
            self._post(node_messages.GpuMemorySeen(action.job_id, action.cycle, report))

    async def warm(self, job_id: str) -> None:
        """Makes later questions about the GPUs quick."""
        with self._given_up_with(job_id):
            await self._gpus.warm()

    def give_up(self, job_id: str) -> None:
        """Cancels what is under way for the job."""
        for each in self._under_way.get(job_id, ()):
            each.cancel()

    @contextmanager
    def _given_up_with(self, job_id: str) -> Generator[None]:
        with anyio.CancelScope() as look:
            self._under_way.setdefault(job_id, set()).add(look)
            try:
                yield
            finally:
                looks = self._under_way[job_id]
                looks.discard(look)
                if not looks:
                    del self._under_way[job_id]
