"""What can monitoring ask a node's supervisor over HTTP? /metrics, /livez and /readyz."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from supervisor.edges.operators import http_server
from supervisor.edges.operators.http_server import Answer, Request
from supervisor.edges.operators.metrics.meter import Meter
from supervisor.ports.edges import Clock
from supervisor.ports.job_requests import JobRequests

METRICS_SOCKET = "metrics.sock"
PAGE, LIVE, READY = "/metrics", "/livez", "/readyz"


async def run(
    job_service: JobRequests,
    meter: Meter,
    *,
    clock: Clock,
    address: tuple[str, int] | None,
    path: Path,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves at `address` and at the Unix socket `path` until cancelled. Raises ConfigurationError."""
    listener = await http_server.listen(address, path, what="metrics", flag="--metrics")
    routes = {
        f"GET {PAGE}": partial(_metrics, job_service, meter, clock),
        f"GET {LIVE}": _live,
        f"GET {READY}": partial(_ready, job_service),
    }
    try:
        await http_server.serve(listener, routes, task_status=task_status)
    finally:
        with suppress(OSError):
            os.unlink(path)


async def _metrics(job_service: JobRequests, meter: Meter, clock: Clock, _: Request) -> Answer:
    from supervisor.edges.operators.metrics import metrics_page  # Late: a node without Prometheus saves its memory.

    asked_s = clock.now_s()
    await anyio.lowlevel.checkpoint()
    lag_s = clock.now_s() - asked_s
    return Answer(
        200, metrics_page.page(meter, job_service.jobs(), job_service.node(), lag_s=lag_s), metrics_page.CONTENT_TYPE
    )


async def _live(_: Request) -> Answer:
    """Answers: the answer itself proves that the supervisor is alive."""
    return Answer(200, b"ok\n")


async def _ready(job_service: JobRequests, _: Request) -> Answer:
    node = job_service.node()
    return Answer(200, b"ok\n") if node.state == "ready" else Answer(503, f"{node.state}: {node.reason}\n".encode())
