"""With which command is a worker bound to its NUMA node?"""

from __future__ import annotations

from supervisor.config.job_spec import JobSpec


def numactl_prefix(spec: JobSpec, local_rank: int) -> tuple[str, ...]:
    """What stands before the worker's own command; () where no binding is asked for.

    Strict: memory from that node only. Else the kernel prefers it and falls back to others when it is full.
    """
    if spec.gpus_per_numa is None:
        return ()
    node = local_rank // spec.gpus_per_numa
    memory = f"--membind={node}" if spec.numa_bind_strict else "--localalloc"
    return ("numactl", f"--cpunodebind={node}", memory)
