"""Does the control API serve, with health, reflection and bounds, on a socket that only its user can reach?"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.edges.operators import control_api
from supervisor.edges.operators.control_api import SecureListener, secure_listener
from supervisor.edges.operators.control_decoding import refusal_from_wire
from supervisor.edges.operators.control_encoding import REQUEST_BYTES_MAX
from supervisor.errors import ConfigurationError, NotFoundError
from tests.edges.operators.fake_job_service import FakeJobService, running, serving

Response = TypeVar("Response", bound=Message)


def _serialise(message: Message) -> bytes:
    return message.SerializeToString()


async def ask(channel: grpc.aio.Channel, method: str, request: Message, response: type[Response]) -> Response:
    path = method if method.startswith("/") else f"/holdfast.v1.Supervisor/{method}"
    call = cast("Any", channel).unary_unary(
        path, request_serializer=_serialise, response_deserializer=response.FromString
    )
    return await call(request, timeout=10)


async def test_it_serves_on_a_socket_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(running()), path):
        assert path.stat().st_mode & 0o777 == 0o600
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            job = await ask(channel, "GetJob", wire.GetJobRequest(job_id="train-7f3a"), wire.Job)
            assert job.state == wire.JOB_STATE_RUNNING
            assert [rank.pid for rank in job.ranks] == [800, 801, 802, 803]
    assert not path.exists()


async def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    assert path.exists()
    async with serving(FakeJobService(), path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert not (await ask(channel, "ListJobs", wire.ListJobsRequest(), wire.ListJobsResponse)).jobs


async def test_a_refusal_has_a_canonical_code_and_error_info(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(), path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "GetJob", wire.GetJobRequest(job_id="other"), wire.Job)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert "cannot show job other" in (caught.value.details() or "")
        trailers = dict(tuple(cast("Any", caught.value.trailing_metadata())))
        assert isinstance(refusal_from_wire(trailers["grpc-status-details-bin"]), NotFoundError)


async def test_a_fault_of_ours_shows_no_detail_and_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(running()), path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        request = wire.GetStacksRequest(job_id="train-7f3a", rank=98)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "GetStacks", request, wire.GetStacksResponse)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in repr(caught.value)
        assert (await ask(channel, "GetNode", wire.GetNodeRequest(), wire.Node)).name == "n0"


async def test_an_oversized_request_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    options = (("grpc.max_send_message_length", -1),)
    async with serving(FakeJobService(), path), grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        request = wire.SubmitJobRequest(spec_json="x" * (REQUEST_BYTES_MAX + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(channel, "SubmitJob", request, wire.SubmitJobResponse)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_at_the_same_time_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_api, "CONCURRENT_CALLS_MAX", 2)
    path, job_service = tmp_path / "control.sock", FakeJobService(running())
    job_service.coming_back["train-7f3a"] = back = anyio.Event()
    request, refused = wire.GetJobRequest(job_id="train-7f3a"), list[grpc.StatusCode]()
    async with serving(job_service, path), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                try:
                    await ask(channel, "GetJob", request, wire.Job)
                except grpc.aio.AioRpcError as error:
                    refused.append(error.code())
                    back.set()  # the others have waited for this one alone

            for _ in range(3):
                tasks.start_soon(wait)
        assert refused == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert (await ask(channel, "GetJob", request, wire.Job)).job_id == "train-7f3a"


def test_tcp_takes_mutual_tls() -> None:
    with pytest.raises(ConfigurationError, match="could stop jobs; give --tls-key, --tls-ca"):
        secure_listener("0.0.0.0:9000", certificate="c", key=None, client_authority=None)
    with pytest.raises(ConfigurationError, match="add --listen"):
        secure_listener(None, certificate="c", key=None, client_authority=None)
    with pytest.raises(ConfigurationError, match="not HOST:PORT"):
        secure_listener("9000", certificate="c", key="k", client_authority="a")
    assert secure_listener(None, certificate=None, key=None, client_authority=None) is None


def make_certificates(place: Path) -> None:
    """Makes an authority and its certificate for "localhost", with the openssl program."""
    config = place / "config"
    config.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for arguments in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=authority -days 2",
        "req -newkey rsa:2048 -nodes -keyout own.key -out own.csr -subj /CN=localhost",
        "x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out own.pem -days 2 -extfile config",
    ):
        subprocess.run(["openssl", *arguments.split()], cwd=place, check=True, capture_output=True)


@pytest.fixture
def listener(tmp_path: Path, unused_tcp_port: int) -> SecureListener:
    make_certificates(tmp_path)
    return SecureListener(
        f"127.0.0.1:{unused_tcp_port}", tmp_path / "own.pem", tmp_path / "own.key", tmp_path / "ca.pem"
    )


def holders_channel(listener: SecureListener) -> grpc.aio.Channel:
    authority, key, chain = (
        path.read_bytes() for path in (listener.client_authority, listener.key, listener.certificate)
    )
    return grpc.aio.secure_channel(listener.address, grpc.ssl_channel_credentials(authority, key, chain))


async def test_tcp_answers_holders_of_a_certificate_only(tmp_path: Path, listener: SecureListener) -> None:
    address, authority = listener.address, listener.client_authority.read_bytes()
    async with serving(FakeJobService(running()), tmp_path / "control.sock", listener=listener):
        async with holders_channel(listener) as channel:
            assert (await ask(channel, "GetNode", wire.GetNodeRequest(), wire.Node)).name == "n0"
        for stranger in (
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority)),
            grpc.aio.insecure_channel(address),
        ):
            async with stranger:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(stranger, "GetNode", wire.GetNodeRequest(), wire.Node)
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_silent_connections_are_bounded_and_keep_no_holder_of_a_certificate_out(
    tmp_path: Path, listener: SecureListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "HANDSHAKE_TIMEOUT_S", 3600.0)
    port = int(listener.address.rpartition(":")[2])
    async with AsyncExitStack() as opened, serving(FakeJobService(), tmp_path / "control.sock", listener=listener):
        silent = [await opened.enter_async_context(await anyio.connect_tcp("127.0.0.1", port)) for _ in range(300)]
        with anyio.fail_after(60):
            for each in silent[:44]:  # the oldest make room
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await each.receive()
        async with holders_channel(listener) as channel:
            assert (await ask(channel, "GetNode", wire.GetNodeRequest(), wire.Node)).name == "n0"


async def test_a_shortage_of_descriptors_ends_nothing(
    tmp_path: Path, listener: SecureListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, port, refused = socket.socket.accept, int(listener.address.rpartition(":")[2]), list[int]()

    def once_refused(self: socket.socket) -> tuple[socket.socket, Any]:
        if not refused and self.getsockname()[1:] == (port,):
            refused.append(errno.EMFILE)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", once_refused)
    async with (
        serving(FakeJobService(), tmp_path / "control.sock", listener=listener),
        holders_channel(listener) as channel,
    ):
        assert (await ask(channel, "GetNode", wire.GetNodeRequest(), wire.Node)).name == "n0"
    assert refused == [errno.EMFILE]


async def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path) -> None:
    listener = SecureListener("127.0.0.1:1", tmp_path / "no.pem", tmp_path / "no.key", tmp_path / "no.ca")
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:1")):
        async with serving(FakeJobService(), tmp_path / "control.sock", listener=listener):
            pass


async def test_a_certificate_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.pem")
    listener = SecureListener("127.0.0.1:0", tmp_path / "own.pem", tmp_path / "own.key", tmp_path / "ca.pem")
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigurationError, match="it is a pipe, not a regular file")):
        async with serving(FakeJobService(), tmp_path / "control.sock", listener=listener):
            pass
