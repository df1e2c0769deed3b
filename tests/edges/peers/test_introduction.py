"""Both sides prove that they know the job's token, or learn why not."""

from __future__ import annotations

import anyio
import pytest

from supervisor.edges.peers import introduction
from supervisor.edges.peers.cluster_frames import Challenge, ClusterProtocolError
from supervisor.edges.peers.cluster_line import Line
from supervisor.edges.peers.cluster_session import Keys, SessionError
from supervisor.edges.peers.introduction import RefusalError, StrangerError, Who
from tests.edges.peers.relays.test_bundle import LIMIT_S, wired

NONCE = b"n" * 32
NODE = Who("job", b"the token of the job", "node-1", "a start of it")


async def meet(theirs: bytes, ours: bytes, *, relay_port: int = 0, refusal: str = "") -> tuple[Keys, Keys, int]:
    """Returns both sides' keys, and the relay port that the node sent. `ours`: the leader's token."""
    near, far, _ = wired()
    found: list[tuple[Keys, int]] = []

    async def lead(line: Line) -> None:
        hello = introduction.read(await line.receive(), theirs, NONCE)
        if refusal:
            introduction.refuse(line, refusal)
            return
        assert (hello.job_id, hello.node, hello.incarnation) == ("job", "node-1", "a start of it")
        found.append((introduction.welcome(line, hello, ours, NONCE, term=7), hello.relay_port))

    async def follow(line: Line) -> None:
        welcome, keys = await introduction.introduce(line, NODE, Challenge(NONCE), relay_port=relay_port)
        assert welcome.term == 7
        found.append((keys, 0))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead, far)
            tasks.start_soon(follow, near)
    (others, port), (keys, _) = found
    return keys, others, port


async def test_two_that_know_the_token_have_the_same_keys():
    keys, others, port = await meet(NODE.token, NODE.token, relay_port=4711)
    assert keys == others
    assert keys.to_leader != keys.to_node
    assert port == 4711


@pytest.mark.parametrize(
    ("theirs", "ours", "refusal", "error"),
    [
        (b"another token", b"", "", SessionError),
        (NODE.token, b"another token", "", StrangerError),
        (NODE.token, NODE.token, "the job has ended", RefusalError),
    ],
)
async def test_who_does_not_know_it_goes_no_further(theirs: bytes, ours: bytes, refusal: str, error: type[Exception]):
    with pytest.raises(ExceptionGroup) as caught:
        await meet(theirs, ours, refusal=refusal)
    assert caught.group_contains(error)


def test_what_is_no_hello_is_refused():
    with pytest.raises(ClusterProtocolError):
        introduction.read(b"\xff\xff", NODE.token, NONCE)
