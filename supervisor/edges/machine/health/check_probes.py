"""Which probe answers which check of the node?

Each probe is loaded at its first use: a job without checks does not pay for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from supervisor.config.job_spec import JobSpec
from supervisor.core import nvhcd_verdict, storage_verdict
from supervisor.core.node_check_facts import HealthFinding

Report = Callable[[tuple[HealthFinding, ...]], None]


class Probe(Protocol):
    """One kind of check, for all jobs of the node."""

    async def look(self, spec: JobSpec, report: Report) -> tuple[HealthFinding, ...]:
        """Returns its findings for this job, one for each thing that it checks. May be cancelled at any time.

        Blocking work belongs in a process or a thread that nobody waits for. An exception means a check without an
        answer. `report`: see ports.NodeChecks.

        """
        ...

    def close(self) -> None: ...


class NodeChecks:
    """Runs the checks; see ports.NodeChecks. Use it only from the event loop's thread."""

    def __init__(self, others: Mapping[str, Callable[[], Probe]] | None = None) -> None:
        """`others`: how to make probes that are in other packages."""
        self._makers = {**_MAKERS, **(others or {})}
        self._probes: dict[str, Probe] = {}

    async def run(self, spec: JobSpec, check: str, report: Report) -> tuple[HealthFinding, ...]:
        probe = self._probes.get(check)
        if probe is None:
            probe = self._probes[check] = self._makers[check]()
        return await probe.look(spec, report)

    def close(self) -> None:
        """Closes the probes. Waits for nothing that hangs."""
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
