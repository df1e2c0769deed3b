"""What does a program see if the supervisor is gone, stopped or speaks something else?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from anyio import to_thread
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.config.job_spec import JobSpec, Nodes
from supervisor.edges.operators import control_client
from supervisor.edges.operators.control_client import ControlClient, DeadlineExceededError
from supervisor.edges.operators.control_encoding import SERVICE
from supervisor.errors import ExhaustedError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent
from tests.edges.operators.fake_job_service import FakeJobService, running, serving

NODES = Nodes(2, 2, "127.0.0.1", 29500, "n0")


def test_nobody_there(tmp_path: Path) -> None:
    with ControlClient(tmp_path / "control.sock") as client, pytest.raises(NoSupervisorError, match="it has gone"):
        client.jobs()


def test_a_supervisor_that_does_not_answer_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(control_client, "LIST_TIMEOUT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        with ControlClient(tmp_path / "control.sock") as client:
            for ask in (client.jobs, client.nodes, lambda: list(client.watch("job"))):
                with pytest.raises(ExhaustedError, match=r"no answer within 0\.3 s; try again"):
                    ask()


@pytest.mark.parametrize("nodes", [None, NODES])
def test_a_call_that_somebody_gives_up_ends_at_once(tmp_path: Path, nodes: Nodes | None) -> None:
    spec, given_up = JobSpec("job", ("train.py",), nodes=nodes), threading.Event()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        with ControlClient(tmp_path / "control.sock") as client:
            threading.Timer(0.2, given_up.set).start()
            began_s = time.monotonic()
            with pytest.raises(DeadlineExceededError, match="given up before it answered"):
                client.submit(spec, {}, given_up=given_up)
            with pytest.raises(DeadlineExceededError, match="given up before it answered"):
                client.job("job", given_up=given_up)
    assert time.monotonic() - began_s < 5.0


async def test_an_answer_wakes_a_call_that_nobody_gives_up(tmp_path: Path) -> None:
    path, spec = tmp_path / "control.sock", JobSpec("job", ("train.py",))
    with ControlClient(path) as client:
        async with serving(FakeJobService(running("j")), path):
            assert await to_thread.run_sync(lambda: client.submit(spec, {}, given_up=threading.Event())) == "job"
            with pytest.raises(NotFoundError):
                await to_thread.run_sync(lambda: client.job("another", given_up=threading.Event()))
    with pytest.raises(NoSupervisorError, match="it has gone"), ControlClient(path) as client:
        await to_thread.run_sync(lambda: client.job("j", given_up=threading.Event()))


def test_what_only_a_newer_supervisor_says_of_a_job_is_skipped(tmp_path: Path) -> None:
    """Else it would be an event without a number, after which a command asks for all events again."""
    told = wire.WatchJobResponse(snapshot=wire.Job(job_id="j")), wire.WatchJobResponse(event=wire.Event(sequence=5))
    answers = told[0].SerializeToString(), b"\x9a\x06\x03new", told[1].SerializeToString()  # field 99

    def watch(_: bytes, context: object) -> Iterator[bytes]:
        del context
        yield from answers

    untyped = cast("Any", grpc)
    methods = {"WatchJob": untyped.unary_stream_rpc_method_handler(watch)}
    server = untyped.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((untyped.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"unix:{tmp_path / 'control.sock'}")
    server.start()
    try:
        with ControlClient(tmp_path / "control.sock") as client:
            report, event = client.watch("j", follow=True)
    finally:
        server.stop(0).wait()
    assert isinstance(report, JobReport)
    assert isinstance(event, RecordedEvent)
    assert event.sequence == 5
