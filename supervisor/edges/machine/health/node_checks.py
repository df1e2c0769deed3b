"""Which probe answers which check of the node?

Each is loaded when it is asked for the first time: a job that asks for no check pays for none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from supervisor.config.job_spec import JobSpec
from supervisor.core import nvhcd_verdict, storage_verdict
from supervisor.core.node_health import Finding

Report = Callable[[tuple[Finding, ...]], None]


class Probe(Protocol):
    """One kind of check, for all jobs of the node."""

    async def look(self, spec: JobSpec, report: Report) -> tuple[Finding, ...]:
        """What it finds for this job, one finding for each thing that it looks at. May be cancelled at any time.

        What blocks belongs into a process or a thread that nobody waits for. What raises is a check without an answer.
        `report`: see ports.NodeChecks.
        """
        ...

    def close(self) -> None: ...


class NodeChecks:
    """See ports.NodeChecks. For the event loop's thread."""

    def __init__(self, others: Mapping[str, Callable[[], Probe]] | None = None) -> None:
        """`others`: how probes are made that are not of this room."""
        self._makers = {**_MAKERS, **(others or {})}
        self._probes: dict[str, Probe] = {}

    async def run(self, spec: JobSpec, check: str, report: Report) -> tuple[Finding, ...]:
        probe = self._probes.get(check)
        if probe is None:
            probe = self._probes[check] = self._makers[check]()
        return await probe.look(spec, report)

    def close(self) -> None:
        """Waits for nothing that hangs."""
        for probe in self._probes.values():
            probe.close()
        self._probes.clear()


def _nvhcd() -> Probe:
    from supervisor.edges.machine.health.nvhcd_client import NvhcdProbe

    return NvhcdProbe()


def _storage() -> Probe:
    from supervisor.edges.machine.health.storage_probe import StorageProbe

    return StorageProbe()


_MAKERS: Mapping[str, Callable[[], Probe]] = {nvhcd_verdict.CHECK: _nvhcd, storage_verdict.CHECK: _storage}
