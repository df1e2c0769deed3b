"""Is a worker bound to the NUMA node of its GPUs?"""

from __future__ import annotations

from supervisor.config import JobSpec
from supervisor.config.numa import numactl_prefix

JOB = ("job", ("t.py",))


def test_as_the_guide_says() -> None:
    spec = JobSpec(*JOB, local_world_size=8, gpus_per_numa=4)
    prefixes = [numactl_prefix(spec, local_rank) for local_rank in range(8)]
    assert prefixes == [("numactl", f"--cpunodebind={node}", f"--membind={node}") for node in (0, 0, 0, 0, 1, 1, 1, 1)]


def test_not_strict_and_not_at_all() -> None:
    spec = JobSpec(*JOB, gpus_per_numa=1, numa_bind_strict=False)
    assert numactl_prefix(spec, 3) == ("numactl", "--cpunodebind=3", "--localalloc")
    assert numactl_prefix(JobSpec(*JOB), 3) == ()
