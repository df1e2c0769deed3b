"""What can be asked of this node's GPUs? Without a driver, nothing is started or loaded.

One process answers for all jobs (gpu_process.py). It starts with the first workers, so that it is ready at a restart.
Network cards have a process of their own, so that one that hangs does not keep the GPUs from being asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from supervisor.config.device_count import has_gpu_driver
from supervisor.config.job_spec import JobSpec
from supervisor.core import gpu_verdict, nic_verdict
from supervisor.core.cpu_binding import NoRoomError, NumaBinding, NumaNode, places
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.core.gpu_memory import GpuMemory, Holder, MemoryReport, MemoryRules

if TYPE_CHECKING:
    from supervisor.edges.machine.gpus.device_probes import GpuProbe, NicProbe
    from supervisor.edges.machine.gpus.gpu_process import GpuProcess


class NodeGpus:
    """Answers questions about the node's GPUs; see ports.Gpus. Use it only from the event loop's thread."""

    def __init__(
        self,
        *,
        worker_socket: str,
        environment: Mapping[str, str] | None = None,
        dev: str = "/dev",
        sysfs: str = "/sys",
        cpus: frozenset[int] | None = None,
    ) -> None:
        """`worker_socket` identifies workers of this supervisor. In `environment`, a driver is looked for; the process
        inherits it; None: this process's own. `cpus`: those that workers may have; None: this process's.

        """
        self._worker_socket = worker_socket
        self._environment = os.environ if environment is None else environment
        self._given = environment
        self._are_there = False
        self._process: GpuProcess | None = None
        self._cards: GpuProcess | None = None
        self._dev = dev
        self._sysfs = sysfs
        self._cpus = cpus

    def are_there(self) -> bool:
        self._are_there = self._are_there or has_gpu_driver(self._environment)
        return self._are_there

    @property
    def process(self) -> GpuProcess:
        if self._process is None:
            from supervisor.edges.machine.gpus.gpu_process import GpuProcess  # Late: only if there are GPUs.

            self._process = GpuProcess(environment=self._given)
        return self._process

    @property
    def cards(self) -> GpuProcess:
        """Returns the process that reads the network cards."""
        if self._cards is None:
            from supervisor.edges.machine.gpus.gpu_process import CARDS, GpuProcess  # Late: only if there are cards.

            self._cards = GpuProcess(environment=self._given, asked=CARDS)
        return self._cards

    async def warm(self) -> None:
        if self.are_there():
            await self.process.warm()

    async def await_memory(self, spec: JobSpec, rules: MemoryRules, *, cgroups: Sequence[str]) -> MemoryReport:
        if not self.are_there():
            return MemoryReport(is_free=True)
        from supervisor.edges.machine.gpus.gpu_process import SilentError

        try:
            answer = await self.process.ask(
                "memory",
                takes_s=rules.timeout_s,
                visible=spec.visible_gpus,
                at_most=spec.local_world_size,
                tolerance_bytes=rules.tolerance_bytes,
                timeout_s=rules.timeout_s,
                look_s=rules.look_s,
                job=(spec.job_id, self._worker_socket, [Path(each).name for each in cgroups]),
                dev=self._dev,
            )
        except SilentError as error:
            return MemoryReport(is_free=False, unknown=str(error))
        return _report(cast("dict[str, Any]", answer))

    async def places(self, spec: JobSpec) -> tuple[tuple[GpuPlace, ...], str]:
        if not self.are_there():
            return (), "the workers are not bound: this node has no NVIDIA driver"
        from supervisor.edges.machine.gpus.gpu_process import SilentError

        try:
            answer = await self.process.ask(
                "places",
                visible=spec.visible_gpus,
                by_speed=not spec.gpus_by_bus,
                sysfs=self._sysfs,
                in_detail=spec.numa_binding != NumaBinding.NODE,
            )
            found = _places(spec, cast("dict[str, Any]", answer), self._cpus or os.sched_getaffinity(0))
        except (SilentError, NoRoomError) as error:
            return (), f"the workers are not bound: {error}"
        if all(each.numa_node < 0 for each in found):
            return (), "the workers are not bound: the kernel reports no NUMA node for their GPUs"
        return found, ""

    def probes(self) -> Mapping[str, Callable[[], GpuProbe | NicProbe]]:
        """Returns how to make the probes of this node's devices (see check_probes.py). Loads nothing until then."""
        return {gpu_verdict.CHECK: self._gpu_probe, nic_verdict.CHECK: self._nic_probe}

    def _gpu_probe(self) -> GpuProbe:
        from supervisor.edges.machine.gpus.device_probes import GpuProbe

        return GpuProbe(self)

    def _nic_probe(self) -> NicProbe:
        from supervisor.edges.machine.gpus.device_probes import NicProbe

        return NicProbe(self)

    async def aclose(self) -> None:
        for process in (self._process, self._cards):
            if process is not None:
                await process.aclose()


def _places(spec: JobSpec, answer: Mapping[str, Any], allowed: Collection[int]) -> tuple[GpuPlace, ...]:
    """Converts the answer to places. Raises NoRoomError."""
    nodes = {each[0]: _node(*each) for each in answer["nodes"]}
    gpus = [(str(name), int(node)) for name, node in answer["gpus"]]
    return places(NumaBinding(spec.numa_binding), gpus, nodes, allowed=allowed)


def _node(
    number: int,
    cpus: list[int],
    socket: int = -1,
    cores: Sequence[list[int]] = (),
    complexes: Sequence[list[int]] = (),
) -> NumaNode:
    return NumaNode(number, tuple(cpus), socket, tuple(map(tuple, cores)), tuple(map(tuple, complexes)))


def _report(answer: Mapping[str, Any]) -> MemoryReport:
    return MemoryReport(
        is_free=bool(answer["is_free"]),
        gpus=tuple(GpuMemory(*each) for each in answer["gpus"]),
        holders=tuple(Holder(pid, gpu, used, name, user) for pid, gpu, used, name, user in answer["holders"]),
        ended=tuple(answer["ended"]),
        looks=int(answer["looks"]),
        took_s=float(answer["took_s"]),
    )
