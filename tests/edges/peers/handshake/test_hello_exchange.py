"""A node identifies itself. With certificates and a token, both sides also prove that they know the token."""

from __future__ import annotations

import anyio
import pytest

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.hello_exchange import STRANGER, RefusalError, StrangerError, Who
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_session import SessionError
from tests.edges.peers.relays.test_multiplexer import LIMIT_S, wired

NODE = Who("job", "node-1", "a start of it")


def knows(line: Line, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a line prove this as TLS does, without it; "": nothing."""
    monkeypatch.setattr(line, "proof", lambda side: f"{side} {token}".encode() if token else b"")  # pyright: ignore


async def meet(
    monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, *, relay_port: int = 0, refusal: str = ""
) -> int:
    """Returns the relay port that the node sent. `ours`: the leader's token."""
    near, far, _ = wired()
    knows(near, theirs, monkeypatch)
    knows(far, ours, monkeypatch)
    found: list[int] = []

    async def lead(line: Line) -> None:
        hello = hello_exchange.read(line, await line.receive())
        if refusal:
            hello_exchange.refuse(line, refusal)
            return
        assert (hello.job_id, hello.node, hello.incarnation) == ("job", "node-1", "a start of it")
        hello_exchange.welcome(line, hello, term=7)
        found.append(hello.relay_port)

    async def follow(line: Line) -> None:
        assert (await hello_exchange.introduce(line, NODE, relay_port=relay_port)).term == 7

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lead, far)
            tasks.start_soon(follow, near)
    return found[0]


@pytest.mark.parametrize("token", ["", "a token"])
async def test_two_that_know_the_token_or_need_none_meet(monkeypatch: pytest.MonkeyPatch, token: str):
    assert await meet(monkeypatch, token, token, relay_port=4711) == 4711


@pytest.mark.parametrize(("theirs", "ours"), [("another", "a token"), ("", "a token"), ("a token", "")])
async def test_who_does_not_know_it_goes_no_further(monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str):
    with pytest.raises(ExceptionGroup) as caught:
        await meet(monkeypatch, theirs, ours)
    assert caught.group_contains(SessionError, match=STRANGER)


async def test_a_leader_that_does_not_know_it_is_not_followed_and_a_refusal_has_its_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    near, far, _ = wired()
    knows(near, "a token", monkeypatch)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:

            async def lead() -> None:
                hello = hello_exchange.cluster_codec.decode(await far.receive())
                assert isinstance(hello, hello_exchange.Hello)
                hello_exchange.welcome(far, hello, term=1)

            tasks.start_soon(lead)
            with pytest.raises(StrangerError, match=STRANGER):
                await hello_exchange.introduce(near, NODE)
    with pytest.raises(ExceptionGroup) as caught:
        await meet(monkeypatch, "", "", refusal="the job has ended")
    assert caught.group_contains(RefusalError, match="the job has ended")


async def test_what_is_no_greeting_and_no_hello_is_refused():
    hello_exchange.check_greeting(hello_exchange.greeting())
    with pytest.raises(ClusterProtocolError):
        hello_exchange.check_greeting(b"")
    near, _, _ = wired()
    with pytest.raises(ClusterProtocolError):
        hello_exchange.read(near, b"\xff\xff")
