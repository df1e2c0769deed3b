"""What does the node's health service (nvhcd) answer, on its Unix socket?

Each check looks for the socket: a service that starts later is asked from then on. core/nvhcd_verdict.py judges the
answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

import anyio

from supervisor.config.job_spec import JobSpec
from supervisor.core.node_check_facts import HealthFinding
from supervisor.core.nvhcd_verdict import Answer, NoReply, Reply, Unusable, judge
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import socket_probe
from supervisor.ports.pauses import within

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS = ("--no-slurm",)
DEADLINE_S = 130.0  # the service itself gives its script 120 s
PROBE_S = 1.0  # for the kernel to connect: a socket without a listener must not use up the deadline
GREETING_S = 5.0  # a service that lives sends HTTP/2's SETTINGS at once, however long its check takes
ANSWER_BYTES_MAX = 1024 * 1024


class NvhcdProbe:
    """Asks the node's health service. See node_checks.Probe."""

    def __init__(self) -> None:
        self._clients: dict[str, NvhcdClient] = {}

    async def look(
        self, spec: JobSpec, report: Callable[[tuple[HealthFinding, ...]], None]
    ) -> tuple[HealthFinding, ...]:
        del report
        path = spec.health.nvhcd_socket
        client = self._clients.setdefault(path, NvhcdClient(path))
        begun_s = anyio.current_time()
        answer = await client.ask()
        return (judge(answer, spec.health.policy, took_s=anyio.current_time() - begun_s),)

    def close(self) -> None:
        """Does nothing: nothing is open between two calls."""


class NvhcdClient:
    """Asks one service. Use it only from the event loop's thread."""

    def __init__(self, path: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._threads = SideThreads(stuck_max=1)

    async def ask(self) -> Answer:
        """Returns the answer by the deadline. Never raises for a fault of the service.

        The time in which this process did not run does not count.
        """
        answer = await within(self._deadline_s, self._ask)
        if answer is None:
            return NoReply(f"{self._path} has not answered within {self._deadline_s:.1f} s")
        return answer

    async def _ask(self) -> Answer:
        try:
            why = await self._threads.call(
                lambda: separately(lambda: _probe(self._path)), timeout_s=2 * PROBE_S, discard=bool
            )
            if why:
                return NoReply(why)
            service = await self._threads.call(
                lambda: _connected(self._path), timeout_s=2 * PROBE_S, discard=socket.socket.close
            )
        except OSError as error:  # stuck, or no thread available
            return NoReply(f"{self._path} can't be looked at: {error}")
        with service:
            return await _call(self._path, service)


def _probe(path: str) -> str:
    """Returns why no trustworthy process listens there; "" if one does. May block for PROBE_S."""
    try:
        peer = socket_probe.connect(path, timeout_s=PROBE_S)
    except FileNotFoundError:
        return f"there is no socket {path}"
    except ConnectionRefusedError:
        return f"nobody listens on {path}"
    except BlockingIOError:
        return f"{path} does not accept a connection within {PROBE_S:g} s"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if peer.is_this_user or peer.foreign:
        return ""
    return f"{path} is served by user {peer.uid}, not by root or user {os.geteuid()}"


def _connected(path: str) -> socket.socket:
    service = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        service.settimeout(PROBE_S)
        service.connect(path)
        service.setblocking(False)
    except BaseException:  # raised again
        service.close()
        raise
    return service


async def _call(path: str, service: socket.socket) -> Answer:
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
            return NoReply(f"{path} accepts connections, but has sent nothing within {GREETING_S:g} s; it may hang")
        payload = await client.unary(METHOD, request, timeout_s=None)
        reply = wire.HealthCheckResponse.FromString(payload)
    except MessageTooLargeError:
        return Unusable(f"it is larger than {ANSWER_BYTES_MAX // 1024} KiB")
    except CallError as error:
        return NoReply(f"{path}: the call has failed with {Status(error.status).name}: {error}")
    except Exception as error:  # noqa: BLE001 - protobuf's runtimes raise different errors for broken bytes
        return Unusable(f"it is not a HealthCheckResponse ({type(error).__name__})")
    return Reply(reply.success, reply.output, reply.exit_code, reply.error)
