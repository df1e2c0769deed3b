"""Does a supervisor report its current state over HTTP?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.metrics import exporter
from supervisor.edges.operators.metrics.event_counters import EventCounters
from tests.edges.operators.fake_job_service import FakeJobService, running
from tests.edges.operators.test_http_server import ask


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


async def test_pages_of_a_supervisor(tmp_path: Path):
    job_service, path = FakeJobService(running("a")), tmp_path / "m"
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(exporter.run, job_service, EventCounters(), clock=Clock(), address=None, path=path))
        assert await ask(path, get("/livez"), until=b"ok\n")
        assert b'holdfast_job_cycle{job_id="a"} 2.0' in await ask(path, get("/metrics"))
        assert (await ask(path, get("/readyz"))).startswith(b"HTTP/1.1 200 ")
        await job_service.set_cordon("", cordoned=True, reason="a fan is loud")
        unready = await ask(path, get("/readyz"))
        assert unready.startswith(b"HTTP/1.1 503 ")
        assert b"a fan is loud" in unready
        tasks.cancel_scope.cancel()
    assert not path.exists()
