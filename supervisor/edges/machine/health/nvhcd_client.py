"""What does the node's health service (nvhcd) answer, on its Unix socket?

Each check looks for the socket: a service that starts later is asked from then on. core/nvhcd_verdict.py judges the
answer.
"""

from __future__ import annotations

import math
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

import anyio
import msgspec
from holdfast_wire import socket_user

from supervisor.config.job_spec import JobSpec
from supervisor.core.node_check_facts import HealthFinding
from supervisor.core.nvhcd_verdict import Answer, NoReply, Reply, Unusable, judge
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import socket_probe
from supervisor.ports.timed_waits import pause, within

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS = ("--no-slurm",)
DEADLINE_S = 130.0  # the service itself gives its script 120 s
PROBE_S = 1.0  # for the kernel to connect: a socket without a listener must not use up the deadline
GREETING_S = 5.0  # a service that lives sends HTTP/2's SETTINGS at once, however long its check takes
SO_FAR_S = 0.5  # for a service that has left the last call unanswered: nobody waits longer, unless the job is strict
ANSWER_BYTES_MAX = 1024 * 1024
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NvhcdProbe:
    """Asks the node's health service. See node_checks.Probe."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._clients: dict[str, NvhcdClient] = {}

    async def look(
        self, spec: JobSpec, report: Callable[[tuple[HealthFinding, ...]], None]
    ) -> tuple[HealthFinding, ...]:
        path, policy = spec.health.nvhcd_socket, spec.health.policy
        client = self._clients.setdefault(path, NvhcdClient(path, deadline_s=self._deadline_s))
        begun_s = anyio.current_time()

        async def tell_so_far() -> None:
            await pause(SO_FAR_S, why="a service that has not answered by then may hang again")
            silent = NoReply(f"{path} has not answered the last call, nor this one so far")
            report((judge(silent, policy, took_s=anyio.current_time() - begun_s),))

        found: tuple[HealthFinding, ...] = ()
        async with anyio.create_task_group() as telling:
            if client.was_silent:
                telling.start_soon(tell_so_far)
            found = (judge(await client.ask(), policy, took_s=anyio.current_time() - begun_s),)
            telling.cancel_scope.cancel()
        return found

    def close(self) -> None:
        """Does nothing: nothing is open between two calls."""


class _Silence(msgspec.Struct, frozen=True):
    """The service has accepted the connection, and a limit has passed; `why` as in NoReply."""

    why: str


class NvhcdClient:
    """Asks one service. Use it only from the event loop's thread."""

    def __init__(self, path: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._threads = SideThreads(stuck_max=1)
        self.was_silent = False  # The last call that has ended was given up without an answer.

    async def ask(self) -> Answer:
        """Returns the answer by the deadline. Never raises for a fault of the service.

        The time in which this process did not run does not count.
        """
        answer = await within(self._deadline_s, self._ask)
        if answer is None:
            answer = _Silence(f"{self._path} has not answered within {self._deadline_s:.1f} s")
        self.was_silent = isinstance(answer, _Silence)
        return NoReply(answer.why) if isinstance(answer, _Silence) else answer

    async def _ask(self) -> Answer | _Silence:
        service = await within(2 * PROBE_S, self._reach)
        if service is None:
            return NoReply(f"{self._path} can't be looked at: it has not ended within {2 * PROBE_S:g} s")
        if isinstance(service, str):
            return NoReply(service)
        with service:
            return await _call(self._path, service)

    async def _reach(self) -> socket.socket | str:
        try:
            return await self._threads.call(lambda: _reach(self._path), timeout_s=math.inf, discard=_drop)
        except OSError as error:  # an earlier one is stuck, or there is no thread
            return f"{self._path} can't be looked at: {error}"


def _reach(path: str) -> socket.socket | str:
    """Returns a connection to a trustworthy process that listens there, or why there is none. May block for PROBE_S."""
    try:
        service = socket_probe.connected(path, timeout_s=PROBE_S)
    except FileNotFoundError:
        return f"there is no socket {path}"
    except ConnectionRefusedError:
        return f"nobody listens on {path}"
    except BlockingIOError:
        return f"{path} does not accept a connection within {PROBE_S:g} s"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    try:
        service.setblocking(False)
        why = _distrust(path, socket_user.credentials(service).uid)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
    if not why:
        return service
    service.close()
    return why


def _drop(reached: socket.socket | str) -> None:
    if not isinstance(reached, str):
        reached.close()


def _distrust(path: str, uid: int) -> str:
    """Returns why the user who serves the path is not asked; "" for one who is trusted. Raises OSError.

    In a user namespace, the node's root has no id, and neither have its other users. Such a one is trusted if nobody
    else may put a socket into the folder: then its owner, or root, has put it there.
    """
    if not socket_user.is_unmapped(uid):
        if socket_user.is_this_user_or_root(uid):
            return ""
        return f"{path} is served by user {uid}, not by root or user {os.geteuid()}"
    folder = os.stat(os.path.dirname(path) or ".")
    owner = folder.st_uid
    if not folder.st_mode & _OTHERS_WRITE and (
        socket_user.is_unmapped(owner) or socket_user.is_this_user_or_root(owner)
    ):
        return ""
    return f"{path} is served by a user without an id in this container, in a folder to which others may write"


async def _call(path: str, service: socket.socket) -> Answer | _Silence:
    from nvhcd import nvhcd_pb2 as wire  # Late: most jobs make no check.

    from supervisor.edges.machine.processes.socket_stream import SocketStream
    from supervisor.edges.rpc.grpc_client import GrpcClient
    from supervisor.edges.rpc.statuses import CallError, MessageTooLargeError, Status

    request = wire.HealthCheckRequest(args=ARGUMENTS).SerializeToString()
    # Without PINGs: the kernel tells the end of a peer on this node. Without a deadline for the service: its clock may
    # go on while this process is stopped. The end of the connection ends the call there.
    client = GrpcClient(SocketStream(service), name="the service", message_bytes_max=ANSWER_BYTES_MAX, pings=False)

    async def greeted() -> bool:
        with suppress(CallError):  # The call tells it.
            await client.until_greeted()
        return True

    try:
        if not await within(GREETING_S, greeted):
            return _Silence(f"{path} accepts connections, but has sent nothing within {GREETING_S:g} s; it may hang")
        payload = await client.unary(METHOD, request, timeout_s=None)
        reply = wire.HealthCheckResponse.FromString(payload)
    except MessageTooLargeError:
        return Unusable(f"it is larger than {ANSWER_BYTES_MAX // 1024} KiB")
    except CallError as error:
        return NoReply(f"{path}: the call has failed with {Status(error.status).name}: {error}")
    except Exception as error:  # noqa: BLE001 - protobuf's runtimes raise different errors for broken bytes
        return Unusable(f"it is not a HealthCheckResponse ({type(error).__name__})")
    return Reply(reply.success, reply.output, reply.exit_code, reply.error)
