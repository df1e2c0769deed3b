"""What can monitoring ask a node's supervisor over HTTP? /metrics, /livez and /readyz."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from supervisor.edges.operators import http_server
from supervisor.edges.operators.metrics.event_counters import EventCounters
from supervisor.ports.edges import Clock
from supervisor.ports.job_requests import JobRequests

if TYPE_CHECKING:
    from starlette.applications import Starlette

METRICS_SOCKET = "metrics.sock"
PAGE, LIVE, READY = "/metrics", "/livez", "/readyz"


async def run(
    job_service: JobRequests,
    counters: EventCounters,
    *,
    clock: Clock,
    address: tuple[str, int] | None,
    path: Path,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves at `address` and at the Unix socket `path` until cancelled. Raises ConfigurationError."""
    listeners = await http_server.listen(address, path, what="metrics", flag="--metrics")
    try:
        await http_server.serve(partial(_app, job_service, counters, clock), listeners, task_status=task_status)
    finally:
        with suppress(OSError):
            os.unlink(path)


def _app(job_service: JobRequests, counters: EventCounters, clock: Clock) -> Starlette:
    """Loads what writes the page late: a node without Prometheus saves its memory."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from supervisor.edges.operators.metrics import metrics_page

    async def metrics(_: Request) -> Response:
        asked_s = clock.now_s()
        await anyio.lowlevel.checkpoint()
        lag_s = clock.now_s() - asked_s
        page = metrics_page.page(counters, job_service.jobs(), job_service.node(), lag_s=lag_s)
        return Response(page, headers={"Content-Type": metrics_page.CONTENT_TYPE})

    async def live(_: Request) -> Response:
        """Answers: the answer itself proves that the supervisor is alive."""
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        node = job_service.node()
        if node.state == "ready":
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"{node.state}: {node.reason}\n", 503)

    return Starlette(routes=[Route(PAGE, metrics), Route(LIVE, live), Route(READY, ready)])
