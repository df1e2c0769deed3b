"""A node health service, compatible with nvhcd: it runs a program and reports its result.

Any process on the node may ask: the socket is meant for containers, too. The arguments of a request become arguments of
the program and never pass through a shell. They and the output are bounded here, connections in healthd_admission.py,
and programs that run at the same time in healthd_queue.py.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import Process, TaskGroup
from google.protobuf.message import DecodeError
from nvhcd import nvhcd_pb2 as wire

from supervisor.config.healthd_file import HealthdSettings
from supervisor.edges.machine.health.healthd_admission import BACKLOG, CONNECTIONS_MAX, SOCKET_MODE, HealthdAdmission
from supervisor.edges.machine.health.healthd_queue import HealthdQueue
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.edges.machine.processes import socket_probe
from supervisor.edges.machine.processes.logins import Logins
from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.rpc.grpc_connection import Call
from supervisor.edges.rpc.grpc_server import GrpcServer
from supervisor.edges.rpc.statuses import CallError, Status
from supervisor.errors import ConfigurationError, ExhaustedError, InUseError

ARGUMENTS_MAX, ARGUMENT_BYTES_MAX = 32, 4096
METHOD = b"/nvhcd.HealthCheckService/RunHealthCheck"
REQUEST_BYTES_MAX = 192 * 1024
CALLS_OF_CONNECTION_MAX = 4
OUTPUT_BYTES_MAX = 448 * 1024  # of each stream, as text; the rest is dropped: our client takes 1 MiB in all
LAST_OUTPUT_S = 0.5  # for data left in the pipes; a process that left the session may hold them open
END_S = 1.0  # for a killed program: SIGKILL does not end one that waits for storage in the kernel (state D)
UNENDING_MAX = 64  # programs that SIGKILL has not ended; with so many, no other is started
PROBE_S = 1.0  # for a connection to another service

_log = logging.getLogger("holdfast.healthd")


class HealthdService:
    """Answers RunHealthCheck."""

    def __init__(self, settings: HealthdSettings, gate: HealthdAdmission, tasks: TaskGroup) -> None:
        self._settings = settings
        self._gate = gate
        self._tasks = tasks
        self._unending: set[int] = set()  # pids of killed programs that have not ended
        self._runs = HealthdQueue(self._check, tasks)

    async def run(self, call: Call) -> None:
        """Answers a call. Raises CallError."""
        try:
            request = wire.HealthCheckRequest.FromString(await call.receive() or b"")
        except DecodeError as error:
            raise CallError(Status.INVALID_ARGUMENT, "cannot check the node: the request can't be decoded") from error
        response = await self._response(call, tuple(request.args))
        await call.send(response.SerializeToString())

    async def _response(self, call: Call, arguments: tuple[str, ...]) -> wire.HealthCheckResponse:
        if len(arguments) > ARGUMENTS_MAX or any(
            "\0" in each or len(each.encode()) > ARGUMENT_BYTES_MAX for each in arguments
        ):
            return _unable(f"more than {ARGUMENTS_MAX} arguments, or one above {ARGUMENT_BYTES_MAX} bytes")
        assert call.client is not None, "the gate's connections are sockets"
        try:
            with self._gate.calling(call.client) as uid:
                return await self._runs.result(uid, arguments)
        except ExhaustedError as error:
            raise CallError(Status.RESOURCE_EXHAUSTED, str(error)) from error
        except LookupError as error:
            raise CallError(Status.UNAVAILABLE, "cannot check the node: the connection has ended") from error

    async def _check(self, arguments: Sequence[str]) -> wire.HealthCheckResponse:
        script = self._settings.healthcheck_path
        begun_s = anyio.current_time()
        if len(self._unending) >= UNENDING_MAX:
            return _unable(f"{UNENDING_MAX} earlier programs have not ended after SIGKILL; check the node's storage")
        try:
            process = await anyio.open_process(
                [script, *arguments], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
            )
        except OSError as error:
            _log.error("cannot run %s: %s", script, error.strerror)
            return _unable(f"cannot run {script}: {error.strerror}")
        output, errors = bytearray(), bytearray()
        limit = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as reading:
                reading.start_soon(_read, process.stdout, output)
                reading.start_soon(_read, process.stderr, errors)
                limit.deadline = anyio.current_time() + self._settings.timeout_s
                with limit:
                    await process.wait()
                _kill_session(process)  # Processes that it left running hold its pipes open.
                reading.cancel_scope.deadline = anyio.current_time() + LAST_OUTPUT_S
        finally:
            await self._end(process)
        text = _text(errors)
        if limit.cancelled_caught:
            _log.error("%s was killed after %g s", script, self._settings.timeout_s)
            stuck = "" if process.returncode is not None else ", nor after SIGKILL: it may wait for storage"
            return wire.HealthCheckResponse(
                success=False,
                exit_code=-1,
                output=_text(output),
                error=f"{script} has not ended within {self._settings.timeout_s:g} s{stuck}; {text}".rstrip("; \n"),
            )
        code = process.returncode or 0
        code = code if code >= 0 else 128 - code
        _log.info("%s ended with %d after %.1f s", script, code, anyio.current_time() - begun_s)
        return wire.HealthCheckResponse(success=code == 0, exit_code=code, output=_text(output), error=text)

    async def _end(self, process: Process) -> None:
        """Ends the program and all processes of its session. Leaves it to a task if SIGKILL does not end it."""
        _kill_session(process)
        with anyio.move_on_after(END_S, shield=True) as limit:
            await _reap(process)
        if limit.cancelled_caught:
            _log.error("process %d has not ended after SIGKILL: it may wait for storage", process.pid)
            self._unending.add(process.pid)
            self._tasks.start_soon(self._reap_late, process)

    async def _reap_late(self, process: Process) -> None:
        try:
            await _reap(process)
        finally:
            self._unending.discard(process.pid)


def _text(said: bytearray) -> str:
    """Returns a bounded part as text: a byte that is not UTF-8 becomes three."""
    return said.decode(errors="replace").encode()[:OUTPUT_BYTES_MAX].decode(errors="ignore")


def _unable(why: str) -> wire.HealthCheckResponse:
    return wire.HealthCheckResponse(success=False, exit_code=-1, error=why)


async def _read(stream: anyio.abc.ByteReceiveStream | None, into: bytearray) -> None:
    """Reads to the end, so that the program never blocks on its output, but keeps only a bounded part."""
    if stream is None:
        return
    async for chunk in stream:
        into += chunk[: max(0, OUTPUT_BYTES_MAX - len(into))]


def _kill_session(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _reap(process: Process) -> None:
    """Returns once the process has ended. May be cancelled: aclose would wait for the end regardless."""
    await process.wait()
    await process.aclose()


@asynccontextmanager
async def serving(settings: HealthdSettings) -> AsyncGenerator[None]:
    """Serves within the block. Raises ConfigurationError, or InUseError if another service answers."""
    path = Path(settings.socket_path)
    _make_room(path)
    try:
        listener = listening(path, mode=SOCKET_MODE, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot serve {path}: {error.strerror or error}; check socket_path") from error
    try:
        with listener:
            async with anyio.create_task_group() as tasks:
                gate = HealthdAdmission(listener, (await in_thread_or_here(Logins)).of)
                server = GrpcServer(
                    {METHOD: HealthdService(settings, gate, tasks).run},
                    calls_max=CONNECTIONS_MAX * CALLS_OF_CONNECTION_MAX,
                    message_bytes_max=REQUEST_BYTES_MAX,
                    streams_max=CALLS_OF_CONNECTION_MAX,
                )
                tasks.start_soon(gate.run, partial(_serve, server))
                try:
                    yield
                finally:
                    with anyio.CancelScope(shield=True):
                        server.end()
                        await server.until_gone()
                    tasks.cancel_scope.cancel()
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


async def _serve(server: GrpcServer, client: socket.socket) -> None:
    await server.serve(SocketStream(client), client)


def _make_room(path: Path) -> None:
    """Removes a socket that nobody serves any more."""
    try:
        socket_probe.connect(path, timeout_s=PROBE_S)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigurationError(f"cannot serve {path}: there is no folder {path.parent}; make it") from None
        return
    except ConnectionRefusedError:
        if not path.is_socket():  # The kernel refuses a connection to a file of any other kind in the same way.
            raise ConfigurationError(f"cannot serve {path}: it is not a socket; choose another socket_path") from None
        path.unlink(missing_ok=True)
        return
    except BlockingIOError:
        pass  # It listens, but its queue is full.
    except OSError as error:
        raise ConfigurationError(f"cannot serve {path}: {error.strerror or error}; check socket_path") from error
    raise InUseError(f"cannot serve {path}: another service listens there; stop it, or choose another socket_path")
