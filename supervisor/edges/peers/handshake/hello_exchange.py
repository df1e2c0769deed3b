"""How do the two sides of a connection identify themselves as nodes of the same job?

One side sends a Greeting, the other a Hello, the first a Welcome or a Refusal. A node does so with its leader, and a
relay with each of them. TLS has shown before that both have the job's token, or certificates of one authority. If a job
has both, the certificates make the connection, and both sides also prove that they know the token.
"""

from __future__ import annotations

import hmac

import msgspec

from supervisor.edges.machine.processes.tcp_peer_user import refusal_of_user
from supervisor.edges.peers.codec import cluster_codec, cluster_versions
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError, Greeting, Hello, Refusal, Welcome
from supervisor.edges.peers.transport.cluster_line import Line, LinkLostError
from supervisor.edges.peers.transport.cluster_session import SessionError

NODE, LEADER = "node", "leader"
TERM_BEFORE = 1  # of a leader that was not elected, if it or its record is of an earlier version; others' are greater
STRANGER = "it does not know the job's token; give all nodes the same token_file"


class Who(msgspec.Struct, frozen=True):
    """One run of a node's supervisor, for one job."""

    job_id: str
    node: str
    incarnation: str


class StrangerError(Exception):
    """Raised if the other side does not know the job's token."""


class RefusalError(Exception):
    """Raised if the other side does not accept this node."""


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


def greeting() -> bytes:
    return cluster_codec.encode(Greeting())


def check_greeting(payload: bytes) -> None:
    """Checks the first message that a node receives. Raises ClusterProtocolError."""
    if not isinstance(cluster_codec.decode(payload), Greeting):
        raise ClusterProtocolError("it does not begin with a Greeting")


async def introduce(line: Line, who: Who, *, relay_port: int = 0) -> Welcome:
    """Does the node's side. Raises StrangerError, RefusalError, LinkLostError or ClusterProtocolError."""
    hello = Hello(
        protocol_version=cluster_versions.NEWEST,
        oldest_version=cluster_versions.OLDEST,
        job_id=who.job_id,
        node=who.node,
        incarnation=who.incarnation,
        proof=line.proof(NODE),
        relay_port=relay_port,
    )
    line.send(cluster_codec.encode(hello))
    match cluster_codec.decode(await line.receive()):
        case Welcome(proof=proof) as welcome:
            if not hmac.compare_digest(proof, line.proof(LEADER)):
                raise StrangerError(STRANGER)
            return welcome
        case Refusal(reason):
            raise RefusalError(reason)
        case other:
            raise ClusterProtocolError(f"it answers with {type(other).__name__}")


def read(line: Line, payload: bytes) -> Hello:
    """Does the leader's side: returns a proven Hello. Raises SessionError or ClusterProtocolError."""
    hello = cluster_codec.decode(payload)
    if not isinstance(hello, Hello):
        raise ClusterProtocolError("cannot take a node in: it does not begin with a Hello")
    if too_far := cluster_versions.refusal(hello.protocol_version, hello.oldest_version):
        raise SessionError(too_far)  # first: another version may prove something else
    if not hmac.compare_digest(hello.proof, line.proof(NODE)):
        raise SessionError(STRANGER)
    return hello


def welcome(line: Line, hello: Hello, *, term: int, preamble_key: bytes = b"") -> None:
    version = cluster_versions.common(hello.protocol_version, hello.oldest_version) or cluster_versions.FIRST
    line.send(cluster_codec.encode(Welcome(term, line.proof(LEADER), version, preamble_key)))


def refuse(line: Line, reason: str) -> None:
    line.send(cluster_codec.encode(Refusal(reason)))
