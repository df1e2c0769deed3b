"""Which checks does a job ask for on this node, and what do they find?"""

from __future__ import annotations

import anyio

from supervisor.config.job_spec import JobSpec
from supervisor.core.node_health import Finding
from supervisor.core.nvhcd_verdict import judge
from supervisor.edges.machine.health.nvhcd_client import NvhcdClient


class NodeChecks:
    """See ports.NodeChecks. For the event loop's thread."""

    def __init__(self) -> None:
        self._clients: dict[str, NvhcdClient] = {}

    async def run(self, spec: JobSpec) -> tuple[Finding, ...]:
        health = spec.health
        if not health.nvhcd_socket:
            return ()
        client = self._clients.setdefault(health.nvhcd_socket, NvhcdClient(health.nvhcd_socket))
        begun_s = anyio.current_time()
        answer = await client.ask()
        return (judge(answer, health.policy, took_s=anyio.current_time() - begun_s),)
