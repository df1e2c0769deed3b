"""Which NVLink domain is this node in? Asked of NVML in another process, which is left alone if it hangs."""

from __future__ import annotations

from typing import cast

from supervisor.edges.machine.gpus.gpu_process import GpuProcess, SilentError

ANSWER_TIMEOUT_S = 20.0  # a healthy driver answers within 3 s, also where no process keeps it loaded


class NoDomainError(Exception):
    """Raised where the domain is unknown; says why, as the end of a sentence."""


async def nvlink_domain(*, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """The ClusterUUID of this node's GPUs, and their clique where the domain has several. Raises NoDomainError."""
    process = GpuProcess(answer_s=timeout_s)
    try:
        answer = await process.ask("fabric")
    except SilentError as error:
        raise NoDomainError(str(error)) from None
    finally:
        await process.aclose()
    told = cast("list[tuple[str, int]]", answer["domains"])
    domains = {f"{cluster}.{clique}" if clique else cluster for cluster, clique in told if cluster}
    if len(domains) == 1:
        return domains.pop()
    raise NoDomainError(f"its GPUs belong to {len(domains)} domains" if domains else "its GPUs have no ClusterUUID")
