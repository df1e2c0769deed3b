"""A node health service, compatible with nvhcd: it runs a program and reports its result.

Any process on the node may ask: the socket is meant for containers, too. The arguments of a request become arguments of
the program and never pass through a shell. They, the output and the number of concurrent programs are bounded.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else gRPC's fork handlers sometimes kill a program that we start

import anyio
import grpc.aio
from anyio.abc import Process
from nvhcd import nvhcd_pb2 as wire

from supervisor.config.healthd_file import HealthdSettings
from supervisor.edges.machine.processes import socket_probe
from supervisor.errors import ConfigurationError, InUseError

SOCKET_MODE = 0o666
CHECKS_MAX = 4  # concurrent programs; further requests wait their turn
ARGUMENTS_MAX, ARGUMENT_BYTES_MAX = 32, 4096
OUTPUT_BYTES_MAX = 512 * 1024  # of each stream; the rest is dropped
LAST_OUTPUT_S = 0.5  # for data left in the pipes; a process that left the session may hold them open
STOP_GRACE_S = 1.0
PROBE_S = 1.0  # for a connection to another service

_log = logging.getLogger("holdfast.healthd")
_grpc = cast("Any", grpc)


class HealthService:
    """Answers RunHealthCheck."""

    def __init__(self, settings: HealthdSettings) -> None:
        self._settings = settings
        self._turns = anyio.Semaphore(CHECKS_MAX)

    def handler(self) -> object:
        run = _grpc.unary_unary_rpc_method_handler(
            self._run,
            request_deserializer=wire.HealthCheckRequest.FromString,
            response_serializer=wire.HealthCheckResponse.SerializeToString,
        )
        return _grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", {"RunHealthCheck": run})

    async def _run(self, request: wire.HealthCheckRequest, context: object) -> wire.HealthCheckResponse:
        del context
        arguments = list(request.args)
        if len(arguments) > ARGUMENTS_MAX or any(
            "\0" in each or len(each.encode()) > ARGUMENT_BYTES_MAX for each in arguments
        ):
            return _unable(f"more than {ARGUMENTS_MAX} arguments, or one above {ARGUMENT_BYTES_MAX} bytes")
        async with self._turns:
            return await self._check(arguments)

    async def _check(self, arguments: list[str]) -> wire.HealthCheckResponse:
        script = self._settings.healthcheck_path
        begun_s = anyio.current_time()
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
            await _end(process)
        text = errors.decode(errors="replace")
        if limit.cancelled_caught:
            _log.error("%s was killed after %g s", script, self._settings.timeout_s)
            return wire.HealthCheckResponse(
                success=False,
                exit_code=-1,
                output=output.decode(errors="replace"),
                error=f"{script} has not ended within {self._settings.timeout_s:g} s; {text}".rstrip("; \n"),
            )
        code = process.returncode or 0
        code = code if code >= 0 else 128 - code
        _log.info("%s ended with %d after %.1f s", script, code, anyio.current_time() - begun_s)
        return wire.HealthCheckResponse(
            success=code == 0, exit_code=code, output=output.decode(errors="replace"), error=text
        )


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


async def _end(process: Process) -> None:
    """Ends the program and all processes of its session."""
    _kill_session(process)
    with anyio.CancelScope(shield=True):
        await process.aclose()


@asynccontextmanager
async def serving(settings: HealthdSettings) -> AsyncGenerator[None]:
    """Serves within the block. Raises ConfigurationError, or InUseError if another service answers."""
    path = Path(settings.socket_path)
    _make_room(path)
    server = cast("Any", grpc.aio).server(options=(("grpc.max_receive_message_length", 1024 * 1024),))
    server.add_generic_rpc_handlers((HealthService(settings).handler(),))
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ConfigurationError(f"cannot serve {path}: {error}; check socket_path") from error
    await server.start()
    try:
        os.chmod(path, SOCKET_MODE)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop(STOP_GRACE_S)
        with suppress(FileNotFoundError):
            os.unlink(path)


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
