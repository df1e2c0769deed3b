"""Which NVLink domain is this node in? Another process asks NVML and is left alone if it hangs."""

from __future__ import annotations

from typing import cast

from supervisor.edges.machine.gpus.gpu_process import GpuProcess, SilentError

ANSWER_TIMEOUT_S = 20.0  # a healthy driver answers within 3 s, even if no process keeps it loaded


class NoDomainError(Exception):
    """Raised if the domain is unknown; its text is the end of a sentence that says why."""


async def nvlink_domain(*, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """Returns the ClusterUUID of this node's GPUs, with their clique if it has several. Raises NoDomainError."""
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
