"""How do the two sides of a connection of the log server identify themselves as processes of the same job?

As the nodes do (edges/peers/handshake/hello_exchange.py): TLS has shown that both have the job's token, or certificates
of one authority. If a job has both, both sides also prove the token, for this connection alone. Without any, the
kernel says whose processes they are.
"""

from __future__ import annotations

import hmac

from holdfast_wire import log_frames
from holdfast_wire.log_frames import VERSION, Greeting, Hello, LogFrameError, Message, Refusal, Welcome

from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.hello_exchange import LEADER, NODE, STRANGER
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_session import SessionError


def greeting() -> bytes:
    return log_frames.encode(Greeting())


async def introduce(line: Line, job_id: str, caller: str, *, has_secrets: bool) -> None:
    """Does the caller's side. Raises SessionError or LinkLostError."""
    first = await line.receive()
    hello_exchange.check_user(line, has_secrets=has_secrets)
    if not isinstance(_decoded(first), Greeting):
        raise SessionError("it is not a log server; check --ft-log-server-port")
    line.send(log_frames.encode(Hello(VERSION, job_id, caller, line.proof(NODE))))
    match _decoded(await line.receive()):
        case Welcome(proof):
            if not hmac.compare_digest(proof, line.proof(LEADER)):
                raise SessionError(STRANGER)
        case Refusal(reason):
            raise SessionError(f"it refuses this node: {reason}")
        case _:
            raise SessionError("it does not answer as a log server does")


async def admit(line: Line, job_id: str) -> str:
    """Does the server's side; returns the caller's name. Raises SessionError or LinkLostError."""
    hello = _decoded(await line.receive())
    try:
        if not isinstance(hello, Hello):
            raise SessionError("it does not begin with a Hello")
        if hello.version != VERSION:
            raise SessionError(
                f"it speaks version {hello.version} of the log server's protocol, this server {VERSION}; "
                "install the same version of Holdfast"
            )
        if hello.job_id != job_id:
            raise SessionError(f"it wants job {hello.job_id}, and this is job {job_id}")
        if not hmac.compare_digest(hello.proof, line.proof(NODE)):
            raise SessionError(STRANGER)
    except SessionError as error:
        line.send(log_frames.encode(Refusal(str(error))))
        raise
    line.send(log_frames.encode(Welcome(line.proof(LEADER))))
    return hello.caller


def _decoded(payload: bytes) -> Message:
    try:
        return log_frames.decode(payload)
    except LogFrameError as error:
        raise SessionError(str(error)) from error
