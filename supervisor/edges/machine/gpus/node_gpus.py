"""What can be asked of this node's GPUs, where there are any? Without a driver nothing is started and nothing loaded.

One process answers for all jobs (gpu_process.py). It starts as the first workers do, so that it is there at a restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from supervisor.config.job_spec import JobSpec
from supervisor.core.gpu_memory import GpuMemory, Holder, MemoryReport, MemoryRules
from supervisor.core.gpu_places import GpuPlace

if TYPE_CHECKING:
    from supervisor.edges.machine.gpus.gpu_process import GpuProcess

LIBRARY = "libnvidia-ml.so.1"
SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")  # the last: Linux under Windows


class NodeGpus:
    """See ports.Gpus. For the event loop's thread."""

    def __init__(
        self,
        *,
        worker_socket: str,
        environment: Mapping[str, str] | None = None,
        dev: str = "/dev",
        sysfs: str = "/sys",
    ) -> None:
        """`worker_socket`: by it, workers of this supervisor are known. `environment`: where a driver is looked for,
        and that of the process; None: this process's own.
        """
        self._worker_socket = worker_socket
        self._environment = os.environ if environment is None else environment
        self._given = environment
        self._process: GpuProcess | None = None
        self._dev = dev
        self._sysfs = sysfs
        self._has_library = _is_on_library_path(self._environment)

    def are_there(self) -> bool:
        return self._has_library or any(map(os.path.exists, SIGNS))

    @property
    def process(self) -> GpuProcess:
        if self._process is None:
            from supervisor.edges.machine.gpus.gpu_process import GpuProcess  # Late: only where there are GPUs.

            self._process = GpuProcess(environment=self._given)
        return self._process

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
            answer = await self.process.ask("places", visible=spec.visible_gpus, sysfs=self._sysfs)
        except SilentError as error:
            return (), f"the workers are not bound: {error}"
        found = tuple(GpuPlace(name, node, tuple(cpus)) for name, node, cpus in cast("dict[str, Any]", answer)["gpus"])
        if all(each.numa_node < 0 for each in found):
            return (), "the workers are not bound: the kernel tells no NUMA node of their GPUs"
        return found, ""

    async def aclose(self) -> None:
        if self._process is not None:
            await self._process.aclose()


def _is_on_library_path(environment: Mapping[str, str]) -> bool:
    """Where the loader would look first: a driver that lies elsewhere shows one of the other signs."""
    folders = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return any(os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders if folder)


def _report(answer: Mapping[str, Any]) -> MemoryReport:
    return MemoryReport(
        is_free=bool(answer["is_free"]),
        gpus=tuple(GpuMemory(*each) for each in answer["gpus"]),
        holders=tuple(Holder(pid, gpu, used, name, user) for pid, gpu, used, name, user in answer["holders"]),
        ended=tuple(answer["ended"]),
        looks=int(answer["looks"]),
        took_s=float(answer["took_s"]),
    )
