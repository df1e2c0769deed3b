"""Both sides of a log server's connection identify themselves; another job, version or token is refused in words."""

from __future__ import annotations

import anyio
import pytest
from holdfast_wire import log_frames
from holdfast_wire.log_frames import VERSION, Hello, Message, Welcome

from supervisor.edges.peers.handshake.hello_exchange import STRANGER
from supervisor.edges.peers.transport.cluster_line import Line, LinkLostError
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.programs.log_service import log_hello_exchange
from tests.edges.peers.handshake.test_hello_exchange import knows
from tests.edges.peers.relays.test_multiplexer import LIMIT_S, wired

JOB = "job"


async def meet(monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, *, wants: str = JOB) -> tuple[str, str, str]:
    """Returns the name that the server learned, why it refused, and what the caller was told."""
    near, far, _ = wired()
    knows(near, theirs, monkeypatch)
    knows(far, ours, monkeypatch)
    name = refused = told = ""
    far.send(log_hello_exchange.greeting())

    async def admit() -> None:
        nonlocal name, refused
        try:
            name = await log_hello_exchange.admit(far, JOB)
        except SessionError as error:
            refused = str(error)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(admit)
            try:
                await log_hello_exchange.introduce(near, wants, "node 1", has_secrets=True)
            except SessionError as error:
                told = str(error)
    return name, refused, told


@pytest.mark.parametrize("token", ["", "a token"])
async def test_two_that_know_the_token_or_need_none_meet(monkeypatch: pytest.MonkeyPatch, token: str):
    assert await meet(monkeypatch, token, token) == ("node 1", "", "")


@pytest.mark.parametrize(("theirs", "ours"), [("another", "a token"), ("", "a token"), ("a token", "")])
async def test_who_does_not_know_it_is_refused(monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str):
    name, refused, told = await meet(monkeypatch, theirs, ours)
    assert (name, refused, told) == ("", STRANGER, f"it refuses this node: {STRANGER}")


async def test_another_job_is_refused(monkeypatch: pytest.MonkeyPatch):
    name, refused, _ = await meet(monkeypatch, "", "", wants="other")
    assert (name, refused) == ("", "it wants job other, and this is job job")


async def answered(message: Message) -> str:
    """Returns what a server says to this, and then why it ends the connection."""
    near, far, _ = wired()
    near.send(log_frames.encode(message))
    with anyio.fail_after(LIMIT_S):
        with pytest.raises(SessionError) as refused:
            await log_hello_exchange.admit(far, JOB)
        assert log_frames.decode(await near.receive()) == log_frames.Refusal(str(refused.value))
    return str(refused.value)


async def test_another_version_is_refused_with_both_and_the_remedy():
    said = await answered(Hello(VERSION + 1, JOB, "node 1"))
    assert said.startswith(f"it speaks version {VERSION + 1} of the log server's protocol, this server {VERSION}; ")


async def test_who_begins_with_anything_else_is_refused():
    assert await answered(log_frames.Alive()) == "it does not begin with a Hello"


async def test_a_server_that_does_not_know_the_token_gets_nothing(monkeypatch: pytest.MonkeyPatch):
    near, far, _ = wired()
    knows(near, "a token", monkeypatch)
    far.send(log_hello_exchange.greeting(), log_frames.encode(Welcome()))
    with anyio.fail_after(LIMIT_S), pytest.raises(SessionError, match=STRANGER):
        await log_hello_exchange.introduce(near, JOB, "node 1", has_secrets=True)


@pytest.mark.parametrize("first", [b"?", log_frames.encode(log_frames.Alive())])
async def test_a_process_that_is_no_log_server_gets_no_hello(first: bytes):
    near, far, _ = wired()
    far.send(first)
    with anyio.fail_after(LIMIT_S), pytest.raises(SessionError):
        await log_hello_exchange.introduce(near, JOB, "node 1", has_secrets=True)
    await ended_without_a_word(far)


async def ended_without_a_word(line: Line) -> None:
    line.end("the test is over")
    with pytest.raises(LinkLostError):
        await line.receive()
