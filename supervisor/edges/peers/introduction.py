"""How do the two sides of a connection identify themselves and prove that they belong to the same job?

One side sends a Challenge, the other a Hello with its proof, the first a Welcome with its own, or a Refusal. A node
does so with its leader, and a relay with each of them.
"""

from __future__ import annotations

import msgspec

from supervisor.edges.machine.processes.tcp_user import refusal_of_user
from supervisor.edges.peers import cluster_codec, cluster_session, cluster_versions
from supervisor.edges.peers.cluster_frames import Challenge, ClusterProtocolError, Hello, Refusal, Welcome
from supervisor.edges.peers.cluster_line import Line, LinkLostError
from supervisor.edges.peers.cluster_session import Keys, SessionError


class Who(msgspec.Struct, frozen=True):
    """One run of a node's supervisor, for one job."""

    job_id: str
    token: bytes
    node: str
    incarnation: str


class StrangerError(Exception):
    """Raised if the other side does not know the job's token."""


class OtherUserError(LinkLostError):
    """Raised if another user's process has the other end of a connection without secrets."""


def check_user(line: Line, *, has_secrets: bool) -> None:
    """Checks, once the other side has said something, whose process it is. Raises LinkLostError."""
    if has_secrets:
        return  # It shows by them that it belongs to the job.
    try:
        whose = line.stranger()
    except OSError as error:
        raise LinkLostError(str(error)) from error
    if whose:
        raise OtherUserError(refusal_of_user(whose))


def challenge(payload: bytes) -> Challenge:
    """Decodes the first message that a node receives. Raises ClusterProtocolError."""
    frame = cluster_codec.decode(payload)
    if not isinstance(frame, Challenge):
        raise ClusterProtocolError("it does not begin with a Challenge")
    return frame


async def introduce(line: Line, who: Who, challenged: Challenge, *, relay_port: int = 0) -> tuple[Welcome, Keys]:
    """Does the node's side. Raises StrangerError, RefusalError, LinkLostError or ClusterProtocolError."""
    nonce = cluster_session.fresh_nonce()
    said = (challenged.nonce, nonce, who.job_id.encode(), who.node.encode(), who.incarnation.encode())
    hello = Hello(
        protocol_version=cluster_versions.NEWEST,
        oldest_version=cluster_versions.OLDEST,
        job_id=who.job_id,
        node=who.node,
        incarnation=who.incarnation,
        nonce=nonce,
        proof=cluster_session.proof(who.token, "node", *said),
        relay_port=relay_port,
    )
    line.send(cluster_codec.encode(hello))
    match cluster_codec.decode(await line.receive()):
        case Welcome(proof) as welcome:
            if not cluster_session.is_proof(proof, who.token, "leader", *said):
                raise StrangerError
            return welcome, cluster_session.derive_keys(who.token, challenged.nonce, nonce)
        case Refusal(reason):
            raise RefusalError(reason)
        case other:
            raise ClusterProtocolError(f"it answers with {type(other).__name__}")


class RefusalError(Exception):
    """Raised if the other side does not accept this node."""


def read(payload: bytes, token: bytes, nonce: bytes) -> Hello:
    """Does the leader's side: returns a proven Hello. Raises SessionError or ClusterProtocolError."""
    hello = cluster_codec.decode(payload)
    if not isinstance(hello, Hello):
        raise ClusterProtocolError("cannot take a node in: it does not begin with a Hello")
    if not cluster_session.is_proof(hello.proof, token, "node", *_said(hello, nonce)):
        raise SessionError("it does not know the job's token")
    return hello


def welcome(line: Line, hello: Hello, token: bytes, nonce: bytes, *, term: int) -> Keys:
    version = cluster_versions.common(hello.protocol_version, hello.oldest_version) or cluster_versions.FIRST
    proof = cluster_session.proof(token, "leader", *_said(hello, nonce))
    line.send(cluster_codec.encode(Welcome(proof, term, version)))
    return cluster_session.derive_keys(token, nonce, hello.nonce)


def refuse(line: Line, reason: str) -> None:
    line.send(cluster_codec.encode(Refusal(reason)))


def _said(hello: Hello, nonce: bytes) -> tuple[bytes, ...]:
    return nonce, hello.nonce, hello.job_id.encode(), hello.node.encode(), hello.incarnation.encode()
