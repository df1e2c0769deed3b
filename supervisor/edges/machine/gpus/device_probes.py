"""What do the checks of GPUs and of network cards find on this node?

Each asks a disposable process of its own. A finding that may pass a moment later is checked twice before it counts.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import anyio
import msgspec

from supervisor.config.device_count import INFINIBAND
from supervisor.config.job_spec import JobSpec
from supervisor.core import gpu_verdict, nic_verdict
from supervisor.core.node_check_facts import Health, HealthFinding
from supervisor.edges.machine.gpus.gpu_process import GpuProcess, SilentError
from supervisor.ports.timed_waits import pause

CONFIRM_S = 0.25


class Node(Protocol):
    """The part of node_gpus.py that the probes use."""

    @property
    def process(self) -> GpuProcess: ...

    @property
    def cards(self) -> GpuProcess: ...

    def are_there(self) -> bool: ...


class GpuProbe:
    """Checks the GPUs. See node_checks.Probe."""

    def __init__(self, gpus: Node) -> None:
        self._gpus = gpus
        self._known = gpu_verdict.Known()  # of all GPUs: one that fell ill in one job is ill for the next
        self._names: dict[tuple[str, ...] | None, tuple[tuple[str, str], ...]] = {}  # by the GPUs that a job may see
        self._looks = 0
        self._unjudged: dict[tuple[str, int], int] = {}  # Xid event -> the look before whose beginning it was read

    async def look(self, spec: JobSpec, report: object = None) -> tuple[HealthFinding, ...]:
        del report
        if not self._gpus.are_there():
            return (HealthFinding(gpu_verdict.CHECK, Health.SKIPPED),)
        try:
            first = await self._look(spec)
            if not gpu_verdict.has_flighty(first):
                return first
            await pause(CONFIRM_S, why="a link that trains again, or a GPU that is being reset, must not cost the node")
            return gpu_verdict.confirmed(first, await self._look(spec))
        except SilentError as error:
            return (HealthFinding(gpu_verdict.CHECK, Health.UNANSWERED, f"the GPUs can't be asked: {error}"),)

    def close(self) -> None:
        """Does nothing: the maker of the process closes it."""

    async def _look(self, spec: JobSpec) -> tuple[HealthFinding, ...]:
        begun_s = anyio.current_time()
        visible = spec.visible_gpus
        process = self._gpus.process
        self._looks += 1
        number = self._looks
        self._unjudged |= dict.fromkeys(process.take_xids(), number)
        # If this look is given up, the next answer judges them, perhaps that of a look that has begun meanwhile.
        answer = cast("dict[str, Any]", await process.ask("fitness", visible=visible))
        unjudged, self._unjudged = self._unjudged, {}
        look = gpu_verdict.Look(
            tuple(map(_words, answer["gpus"])),
            tuple((str(name), str(uuid)) for name, uuid in answer["lost"]),
            (*process.take_xids(), *(xid for xid, before in unjudged.items() if before > number)),
            tuple(xid for xid, before in unjudged.items() if before <= number),
        )
        took_s = anyio.current_time() - begun_s
        known = msgspec.structs.replace(self._known, names=self._names.get(visible, ()))
        findings, self._known = gpu_verdict.judge(look, known, took_s=took_s)
        self._names[visible] = self._known.names
        return findings


class NicProbe:
    """Checks the network cards. See node_checks.Probe."""

    def __init__(self, gpus: Node, *, folder: str = INFINIBAND) -> None:
        self._gpus = gpus
        self._folder = folder
        self._known = nic_verdict.Known()

    async def look(self, spec: JobSpec, report: object = None) -> tuple[HealthFinding, ...]:
        del report
        try:
            first = await self._look(spec)
            if all(each.health is not Health.UNHEALTHY for each in first):
                return first
            await pause(CONFIRM_S, why="a port whose link trains again must not cost the node")
            return gpu_verdict.confirmed(first, await self._look(spec))
        except SilentError as error:
            return (
                HealthFinding(nic_verdict.CHECK, Health.UNANSWERED, f"the network cards can't be looked at: {error}"),
            )

    def close(self) -> None:
        """Does nothing: the maker of the process closes it."""

    async def _look(self, spec: JobSpec) -> tuple[HealthFinding, ...]:
        begun_s = anyio.current_time()
        health = spec.health
        answer = await self._gpus.cards.ask(
            "ports",
            folder=self._folder,
            state_template=health.link_state_template,
            counter_template=health.link_down_template,
        )
        ports = cast("list[list[Any]] | None", answer["ports"])
        if ports is None:
            return (HealthFinding(nic_verdict.CHECK, Health.UNANSWERED, f"{self._folder} can't be read"),)
        findings, self._known = nic_verdict.judge(
            tuple(nic_verdict.Port(str(name), str(state), downs) for name, state, downs in ports),
            self._known,
            now_s=anyio.current_time(),
            states=health.nic_states,
            counters=health.nic_counters,
            took_s=anyio.current_time() - begun_s,
        )
        return findings


def _words(answer: list[Any]) -> gpu_verdict.GpuWords:
    *simple, links = answer
    return gpu_verdict.GpuWords(*simple, links=tuple(links))
