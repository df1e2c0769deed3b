"""Threads compute the steps of handshakes: the event loop goes on meanwhile, and nothing is lost or out of order."""

from __future__ import annotations

import gc
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
import pytest

from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_tls import EARLY_BYTES_MAX, Pipe, Tls
from supervisor.edges.peers.transport.tls_handshakes import Handshakes
from tests.edges.peers.certificates import make_authority, make_node

LIMIT_S = 30.0


class Computed:
    """The ends of steps, as the event loop hears of them."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []
        self._changed = anyio.Event()

    def done(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self._changed.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(LIMIT_S):
            while len(self.errors) < count:
                self._changed = anyio.Event()
                await self._changed.wait()


@pytest.fixture
async def handshakes() -> AsyncGenerator[Handshakes]:
    handshakes = Handshakes()
    yield handshakes
    handshakes.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    place = tmp_path_factory.mktemp("certificates")
    make_authority(place)
    return cluster_tls.load(make_node(place))


async def test_the_event_loop_goes_on_while_a_step_is_computed_and_hears_of_its_end_and_of_its_error(
    handshakes: Handshakes,
):
    computed, may_end = Computed(), threading.Event()
    in_loop = threading.get_ident()
    threads: list[int] = []

    def wait() -> None:
        threads.append(threading.get_ident())
        assert may_end.wait(LIMIT_S)

    def fail() -> None:
        raise ssl.SSLError("bad")

    handshakes.compute(wait, computed.done)
    await anyio.lowlevel.checkpoint()
    assert computed.errors == []
    may_end.set()
    await computed.until(1)
    handshakes.compute(fail, computed.done)
    await computed.until(2)
    assert computed.errors[0] is None
    assert isinstance(computed.errors[1], ssl.SSLError)
    assert in_loop not in threads


async def test_steps_that_wait_when_it_closes_are_still_computed():
    handshakes, computed, may_end = Handshakes(), Computed(), threading.Event()
    for _ in range(20):
        handshakes.compute(lambda: may_end.wait(LIMIT_S), computed.done)
    handshakes.close()
    may_end.set()
    await computed.until(20)
    assert not any(computed.errors)


class Led:
    """A leader's pipe and what it says, as a line uses it."""

    def __init__(self, tls: Tls, handshakes: Handshakes) -> None:
        self.pipe = Pipe(tls, leads=True, handshakes=handshakes)
        self.heard = b""
        self.errors: list[ssl.SSLError] = []
        self.stepped = anyio.Event()

    def _go_on(self) -> None:
        try:
            self.heard += self.pipe.go_on(self._go_on)
        except ssl.SSLError as error:
            self.errors.append(error)
        self.stepped.set()
        self.stepped = anyio.Event()

    async def take(self, *sealed: bytes) -> bytes:
        """Takes data in pieces, all but the first during the step; returns the answer after it."""
        stepped = self.stepped
        for each in sealed:
            self.heard += self.pipe.read(each, self._go_on)
            assert self.pipe.outgoing() == b""  # a thread may be writing to it
        with anyio.fail_after(LIMIT_S):
            await stepped.wait()
            while not (answer := self.pipe.outgoing()) and not self.errors:
                await self.stepped.wait()
        return answer


async def test_data_that_comes_or_is_sent_during_a_step_is_neither_lost_nor_out_of_order(
    tls: Tls, handshakes: Handshakes
):
    led, node = Led(tls, handshakes), Pipe(tls, leads=False)
    led.pipe.write(b"a greeting, ")
    node.read(b"")
    first = node.outgoing()
    node.read(await led.take(first[:100], first[100:]))
    node.write(b"one, ")
    sealed = node.outgoing()
    node.write(b"two, ")
    sealed_later = node.outgoing()
    led.pipe.write(b"a second one")
    assert node.read(await led.take(sealed[:50], sealed[50:], sealed_later)) == b"a greeting, a second one"
    assert led.heard == b"one, two, "
    node.write(b"three")
    assert led.pipe.read(node.outgoing()) == b"three"


async def test_a_step_that_fails_tells_both_sides(tls: Tls, handshakes: Handshakes):
    led = Led(tls, handshakes)
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    node = Pipe(Tls(tls.leads, stranger), leads=False)
    node.read(b"")
    node.read(await led.take(node.outgoing()))
    alert = await led.take(node.outgoing())
    assert [error.reason for error in led.errors] == ["PEER_DID_NOT_RETURN_A_CERTIFICATE"]
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        node.read(alert)


async def test_a_pipe_that_parts_during_a_step_leaves_it_alone(tls: Tls, handshakes: Handshakes):
    led, node = Led(tls, handshakes), Pipe(tls, leads=False)
    node.read(b"")
    led.pipe.read(node.outgoing())
    led.pipe.part()
    with anyio.fail_after(LIMIT_S):
        while not (answer := led.pipe.outgoing()):
            await anyio.lowlevel.checkpoint()
    node.read(answer)
    assert node.outgoing()  # it understood what the step has said


async def test_an_ended_line_and_its_pipe_are_freed_without_the_garbage_collector(tls: Tls, handshakes: Handshakes):
    pipe = Pipe(tls, leads=True, handshakes=handshakes)
    line = Line(pipe=pipe)
    freed = weakref.ref(line), weakref.ref(pipe)
    line.end("the test ends it")
    gc.disable()
    try:
        del line, pipe
        assert [each() for each in freed] == [None, None]
    finally:
        gc.enable()


async def test_a_stranger_cannot_fill_the_memory_during_a_step(tls: Tls, handshakes: Handshakes):
    led = Led(tls, handshakes)
    node = Pipe(tls, leads=False)
    node.read(b"")
    led.pipe.read(node.outgoing())
    for _ in range(EARLY_BYTES_MAX // 1024):
        led.pipe.read(b"x" * 1024)
    with pytest.raises(ssl.SSLError) as flooded:
        led.pipe.read(b"x")
    why = "TLS fails: it sends too much before the handshake is done"
    assert led.pipe.judge(flooded.value) == (False, why)
