"""Which command binds a worker to its NUMA node, and which flag does so without a command?"""

from __future__ import annotations

from supervisor.config import values
from supervisor.config.job_spec import JobSpec
from supervisor.config.setting import Group, Setting
from supervisor.core.cpu_binding import NumaBinding

NUMA_BINDING = Setting(
    "--numa-binding",
    values.choice(*NumaBinding),
    "bind each worker to CPUs and memory near its GPU: its NUMA node, its socket, cores of the NUMA node that no other "
    "worker has (exclusive), or those that share a cache (core-complex)",
    Group.WORKERS,
    path="numa_binding",
)


def numactl_prefix(spec: JobSpec, local_rank: int) -> tuple[str, ...]:
    """Returns what goes before the worker's own command; () if no binding is asked for.

    Strict: memory from that node only. Else the kernel prefers it and falls back to others when it is full.
    """
    if spec.gpus_per_numa is None:
        return ()
    node = local_rank // spec.gpus_per_numa
    memory = f"--membind={node}" if spec.numa_bind_strict else "--localalloc"
    return ("numactl", f"--cpunodebind={node}", memory)
