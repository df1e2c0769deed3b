"""What does the node's health service (nvhcd) answer, on its Unix socket?

This module does not import grpc, which the first check loads. Each check looks for the socket: a service that starts
later is asked from then on. core/nvhcd_verdict.py judges the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import anyio

from supervisor.config.job_spec import JobSpec
from supervisor.core.node_health import Finding
from supervisor.core.nvhcd_verdict import Answer, NoReply, Reply, Unusable, judge
from supervisor.edges.machine.own_process.own_descriptors import separately
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes import socket_probe

if TYPE_CHECKING:
    import grpc.aio

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS = ("--no-slurm",)
DEADLINE_S = 130.0  # the service itself gives its script 120 s
PROBE_S = 1.0  # for the kernel to connect: a socket without a listener must not use up the deadline
MARGIN_S = 1.0  # gRPC itself keeps the deadline
ANSWER_BYTES_MAX = 1024 * 1024


class NvhcdProbe:
    """Asks the node's health service. See node_checks.Probe."""

    def __init__(self) -> None:
        self._clients: dict[str, NvhcdClient] = {}

    async def look(self, spec: JobSpec, report: Callable[[tuple[Finding, ...]], None]) -> tuple[Finding, ...]:
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
        """Returns the answer by the deadline. Never raises for a fault of the service."""
        until_s = anyio.current_time() + self._deadline_s
        with anyio.move_on_at(until_s + MARGIN_S):
            try:
                why = await self._threads.call(
                    lambda: separately(lambda: _probe(self._path)), timeout_s=2 * PROBE_S, discard=bool
                )
            except OSError as error:  # stuck, or no thread available
                why = f"{self._path} can't be looked at: {error}"
            return NoReply(why) if why else await _call(self._path, until_s - anyio.current_time())
        return NoReply(f"{self._path} has not answered within {self._deadline_s:.1f} s")


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


async def _call(path: str, timeout_s: float) -> Answer:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # see edges/operators/control_api.py
    import grpc
    import grpc.aio
    from nvhcd import nvhcd_pb2 as wire

    options = (
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    channel: grpc.aio.Channel = cast("Any", grpc.aio).insecure_channel(f"unix:{path}", options=options)
    async with channel:
        call = cast("Any", channel).unary_unary(METHOD, request_serializer=wire.HealthCheckRequest.SerializeToString)
        try:
            payload: bytes = await call(wire.HealthCheckRequest(args=ARGUMENTS), timeout=timeout_s)
            reply = wire.HealthCheckResponse.FromString(payload)
        except grpc.aio.AioRpcError as error:
            return _what_failed(path, timeout_s, cast("Any", error).code(), cast("Any", error).details() or "")
        except Exception as error:  # noqa: BLE001 - protobuf's runtimes raise different errors for broken bytes
            return Unusable(f"it is not a HealthCheckResponse ({type(error).__name__})")
    return Reply(reply.success, reply.output, reply.exit_code, reply.error)


def _what_failed(path: str, timeout_s: float, code: grpc.StatusCode, details: str) -> Answer:
    import grpc

    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoReply(f"{path} has not answered within {timeout_s:.1f} s")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return Unusable(f"it is larger than {ANSWER_BYTES_MAX // 1024} KiB")
    return NoReply(f"the call has failed with {code.name}: {details}")
