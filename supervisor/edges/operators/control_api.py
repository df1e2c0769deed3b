"""How do operators and programs ask this supervisor? The gRPC service, its ports and its bounds.

Does not import grpc: that costs 90 ms, which a cold start must not pay before the workers run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import msgspec
from anyio.abc import TaskStatus

from supervisor.edges.operators.callers import Callers
from supervisor.edges.operators.control_codec import MESSAGE_BYTES_MAX, SERVICE
from supervisor.errors import ConfigurationError
from supervisor.ports import JobDesk, JobHistory

if TYPE_CHECKING:
    import grpc.aio

CONCURRENT_CALLS_MAX = 256  # for all clients together; beyond it RESOURCE_EXHAUSTED
STREAMS_PER_CONNECTION_MAX = 64
STOP_GRACE_S = 0.5  # for calls in flight when the supervisor ends
SOCKET_MODE = 0o600
_SERVING = 1  # from grpc.health.v1
# gRPC reads it when it is loaded, which is later. Its fork handlers run in each child that we fork, before it executes
# anything, and end it with SIGABRT if one of gRPC's threads was busy: one spawner in ten. No child of ours uses gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


class SecureListener(msgspec.Struct, frozen=True):
    """A TCP port with mutual TLS. Without TLS there is no TCP port."""

    address: str  # host:port
    certificate: Path
    key: Path
    client_authority: Path


def secure_listener(
    address: str | None, *, certificate: str | None, key: str | None, client_authority: str | None
) -> SecureListener | None:
    """Builds it from --listen, --tls-cert, --tls-key and --tls-ca. Raises ConfigurationError if only some are set."""
    given = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": client_authority}
    missing = [flag for flag, value in given.items() if not value]
    if not address:
        if len(missing) < len(given):
            raise ConfigurationError("cannot use --tls-…: there is no --listen HOST:PORT to protect")
        return None
    if missing or not (certificate and key and client_authority):
        raise ConfigurationError(
            f"cannot listen on {address}: without mutual TLS, anybody who reaches it could stop jobs; "
            f"give {', '.join(missing)}"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"cannot listen on {address}: not HOST:PORT")
    return SecureListener(address, Path(certificate), Path(key), Path(client_authority))


async def run(
    desk: JobDesk,
    history: JobHistory,
    *,
    socket_path: Path,
    listener: SecureListener | None = None,
    callers: Callers | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` once clients get answers. Raises ConfigurationError if a port is not available.

    `callers`: for a supervisor of one of several users, whose jobs get the limits of the submitting process.
    """
    async with _serving(desk, history, socket_path, listener, callers):
        task_status.started()
        await anyio.sleep_forever()


@asynccontextmanager
async def _serving(
    desk: JobDesk,
    history: JobHistory,
    socket_path: Path,
    listener: SecureListener | None,
    callers: Callers | None,
) -> AsyncGenerator[None]:
    import grpc.aio

    from supervisor.edges.operators.control_service import ControlService

    # grpc's stubs leave type parameters open.
    server: grpc.aio.Server = cast("Any", grpc.aio).server(
        options=(
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=CONCURRENT_CALLS_MAX,
    )
    cast("Any", server).add_generic_rpc_handlers((ControlService(desk, history, callers).handlers(),))
    health = _add_health_and_reflection(server)
    await health.set("", _SERVING)
    await health.set(SERVICE, _SERVING)
    _bind(server, socket_path, listener)
    await server.start()
    os.chmod(socket_path, SOCKET_MODE)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # half an answer is worse than half a second; the grace bounds it
            await health.enter_graceful_shutdown()
            await server.stop(STOP_GRACE_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)


def _bind(server: grpc.aio.Server, socket_path: Path, listener: SecureListener | None) -> None:
    import grpc

    try:
        server.add_insecure_port(f"unix:{socket_path}")
    except RuntimeError as error:
        raise ConfigurationError(f"cannot listen on {socket_path}: {error}; choose another --socket-dir") from error
    if listener is None:
        return
    try:
        key, chain, authority = (
            path.read_bytes() for path in (listener.key, listener.certificate, listener.client_authority)
        )
        credentials = grpc.ssl_server_credentials([(key, chain)], root_certificates=authority, require_client_auth=True)
        server.add_secure_port(listener.address, credentials)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"cannot listen on {listener.address}: {error}; check --listen and --tls-…") from error


class _Health(Protocol):
    """The asyncio form of grpcio-health-checking's servicer, which has no stubs."""

    async def set(self, service: str, status: int) -> None: ...

    async def enter_graceful_shutdown(self) -> None: ...


def _add_health_and_reflection(server: grpc.aio.Server) -> _Health:
    from grpc_health.v1 import health, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = cast("Any", health).aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = (SERVICE, cast("Any", health).SERVICE_NAME, reflection.SERVICE_NAME)
    cast("Any", reflection).enable_server_reflection(names, server)
    return servicer
