"""A lost message is sent again: nothing that happens to a connection makes a rank mute."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, WORKER_FRAME_BYTES_MAX, Decoder, encode
from holdfast_wire.v1 import worker_pb2 as wire

from worker_client import call_protocol, channel
from worker_client.call_protocol import CallEvent
from worker_client.channel import Channel
from worker_client.channel_protocol import Identity, Welcomed
from worker_client.endpoint import Endpoint
from worker_client.outbox import CALL_FRAMES_MAX
from worker_client.progress_page_writer import ProgressPage
from worker_client.rank_progress import Progress
from worker_client.timeouts import Limits

WAIT_S = 20.0
VALUE = call_protocol.frame(call_protocol.ExchangeValue(1, 0, "n", 0, "x" * 8000))
REPORTED = call_protocol.frame(call_protocol.FaultsReported(1, 0))


class Owner:
    """Sends `repeated` on each connection, as a wrapped call does."""

    def __init__(self) -> None:
        self.say: Callable[[bytes], None] = lambda _: None
        self.repeated: list[bytes] = []
        self.welcomes = 0
        self.reasons: list[str] = []
        self.heard_calls: list[CallEvent] = []
        self.breaks = False
        self.found: list[Endpoint | None] = []  # the newest counts; without any, nobody looks

    def find(self, known: Endpoint) -> Endpoint | None:
        return self.found[-1] if self.found else known

    def welcomed(self, welcome: Welcomed, page: ProgressPage) -> bool:
        self.welcomes += 1
        for frame in self.repeated:
            self.say(frame)
        return False

    def unreachable(self, reason: str) -> None:
        self.reasons.append(reason)

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)

    def heard(self, event: CallEvent) -> None:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a mistake of ours")
        self.heard_calls.append(event)


class Peer:
    """The supervisor's end of one connection: it reads on request."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, _ = listener.accept()
        self.socket.settimeout(WAIT_S)
        self._decoder = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX)
        self._frames: list[wire.WorkerFrame] = []
        hello = self.read()
        assert hello.WhichOneof("body") == "hello"
        self.token = hello.hello.token

    def send(self, frame: wire.SupervisorFrame) -> None:
        self.socket.sendall(encode(frame.SerializeToString(), frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX))

    def welcome(self) -> None:
        self.send(wire.SupervisorFrame(welcome=wire.Welcome(protocol=1)))

    def refuse(self) -> None:
        """Refuses permanently."""
        self.send(wire.SupervisorFrame(refused=wire.Refused(reason="its token is not this cycle's", retry=False)))

    def read(self) -> wire.WorkerFrame:
        while not self._frames:
            data = self.socket.recv(1 << 16)
            assert data, "the client has closed the connection"
            self._frames += map(wire.WorkerFrame.FromString, self._decoder.feed(data))
        return self._frames.pop(0)

    def read_to_the_end(self) -> None:
        while self.socket.recv(1 << 16):
            pass

    def read_kind(self, kind: str) -> wire.WorkerFrame:
        while (frame := self.read()).WhichOneof("body") != kind:
            pass
        return frame


Meet = Callable[[], Peer]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        listening.listen()
        listening.settimeout(WAIT_S)
        yield listening


@pytest.fixture
def meet(listener: socket.socket) -> Iterator[Meet]:
    """Returns the next connection."""
    met: list[Peer] = []

    def one() -> Peer:
        met.append(Peer(listener))
        return met[-1]

    yield one
    for peer in met:
        peer.socket.close()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def opened(listener: socket.socket, owner: Owner) -> Iterator[Channel]:
    made = Channel(str(listener.getsockname()), Identity("job", 0, 0, 0, b"token"), Progress(), owner)
    owner.say = made.say
    made.start()
    yield made
    made.close()


def _until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        threading.Event().wait(0.005)


def _fill(made: Channel) -> None:
    """Queues more than the socket takes, but not more than allowed."""
    for _ in range(40):
        made.say(VALUE)


@pytest.mark.alone
def test_a_supervisor_that_does_not_read_costs_the_speaker_nothing_and_is_told_again(
    meet: Meet, owner: Owner, opened: Channel
):
    deaf = meet()
    deaf.welcome()
    _until(lambda: owner.welcomes)
    owner.repeated = [REPORTED]
    began_s = time.monotonic()
    for _ in range(20 * CALL_FRAMES_MAX):
        opened.say(VALUE)
    assert time.monotonic() - began_s < 1
    deaf.read_to_the_end()
    again = meet()
    again.welcome()
    assert again.read_kind("faults_reported").faults_reported.call == 1
    assert any(f"more than {CALL_FRAMES_MAX} frames" in reason for reason in owner.reasons)


def test_what_waits_is_one_note_beside_those_that_others_left(meet: Meet, owner: Owner, opened: Channel):
    deaf = meet()
    deaf.welcome()
    _until(lambda: owner.welcomes)
    _fill(opened)
    for limit_s in range(1, 5000):
        opened.tell_limits(Limits(heartbeat_s=limit_s))
        opened.watch_changed(1.0)
    assert owner.reasons == []
    assert len(opened._out) < 2 * len(VALUE)  # pyright: ignore[reportPrivateUsage]
    assert deaf.read_kind("limits_calculated").limits_calculated.limits.heartbeat_s == 4999


def test_the_kernel_has_all_only_after_the_last_connection_has_it(meet: Meet, owner: Owner, opened: Channel):
    deaf = meet()
    deaf.welcome()
    _until(lambda: owner.welcomes)
    owner.repeated = [REPORTED]
    _fill(opened)
    assert not opened.wait_sent(0.05)
    deaf.socket.close()
    again = meet()
    assert not opened.wait_sent(0.05)
    again.welcome()
    assert opened.wait_sent(WAIT_S)
    assert again.read_kind("faults_reported")


def test_a_mistake_of_ours_costs_a_connection_and_not_the_rank(meet: Meet, owner: Owner, opened: Channel):
    owner.breaks, owner.repeated = True, [REPORTED]
    first = meet()
    first.welcome()
    first.send(wire.SupervisorFrame(interrupt=wire.Interrupt(call=1)))
    again = meet()
    again.welcome()
    assert again.read_kind("faults_reported")
    assert "RuntimeError: a mistake of ours" in owner.reasons[0]


def test_limits_that_no_frame_holds_are_said_to_the_user_and_nothing_else_suffers(
    meet: Meet, owner: Owner, opened: Channel, caplog: pytest.LogCaptureFixture
):
    peer = meet()
    peer.welcome()
    _until(lambda: owner.welcomes)
    long = tuple((f"{number:0300}", 1.0) for number in range(256))
    with caplog.at_level(logging.WARNING, "holdfast"):
        opened.tell_limits(Limits(heartbeat_s=1.0, sections=long))
        opened.say(REPORTED)
        assert peer.read_kind("faults_reported")
        _until(lambda: caplog.records)
    assert "cannot tell the supervisor the calculated limits" in caplog.text
    assert owner.reasons == []


def test_stacks_of_files_with_odd_names_are_answered(meet: Meet, opened: Channel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "current_stacks", lambda: os.fsdecode(b"File caf\xe9.py"))
    peer = meet()
    peer.welcome()
    peer.send(wire.SupervisorFrame(stacks_request=wire.StacksRequest(request_id=3)))
    assert peer.read_kind("stacks_answer").stacks_answer.text == "File caf?.py"


def test_one_who_asks_and_never_reads_is_left(
    meet: Meet, owner: Owner, opened: Channel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(channel, "current_stacks", lambda: "x" * 60_000)
    deaf = meet()
    deaf.welcome()
    with contextlib.suppress(BrokenPipeError):
        for number in range(50):
            deaf.send(wire.SupervisorFrame(stacks_request=wire.StacksRequest(request_id=number)))
    meet().welcome()
    assert "asks and does not read" in owner.reasons[0]


def test_the_last_words_of_a_rank_that_goes_are_waited_for_a_moment(meet: Meet, owner: Owner, opened: Channel):
    peer = meet()
    peer.welcome()
    _until(lambda: owner.welcomes)
    _fill(opened)
    opened.say(REPORTED)
    closing = threading.Thread(target=opened.close)
    closing.start()
    assert peer.read_kind("faults_reported")
    assert peer.read_kind("goodbye")
    closing.join(WAIT_S)


@pytest.mark.alone
def test_a_full_socket_holds_nobody_up_at_the_end(meet: Meet, owner: Owner, opened: Channel):
    deaf = meet()
    deaf.welcome()
    _until(lambda: owner.welcomes)
    _fill(opened)
    began_s = time.monotonic()
    opened.close()
    assert time.monotonic() - began_s < channel.CLOSE_TIMEOUT_S + 0.5
    deaf.socket.close()


def test_a_refusal_is_final_where_no_other_supervisor_can_come(meet: Meet, owner: Owner, opened: Channel):
    meet().refuse()
    _until(lambda: opened.has_given_up)
    assert "its token is not this cycle's" in owner.reasons[0]


def test_one_that_was_refused_by_a_dead_ones_successor_asks_who_serves_now(
    meet: Meet, owner: Owner, opened: Channel, listener: socket.socket
):
    """The successor has bound its socket, but not published its address yet."""
    owner.found.append(None)
    meet().refuse()
    again = meet()
    assert again.token == b"token"
    assert not opened.has_given_up
    owner.found.append(Endpoint(str(listener.getsockname()), "job", 0, b"fresh"))
    again.refuse()
    followed = meet()
    assert followed.token == b"fresh"
    followed.welcome()
    _until(lambda: owner.welcomes)
    followed.socket.close()
    meet().refuse()  # this one serves now
    _until(lambda: opened.has_given_up)


def test_what_only_a_newer_supervisor_says_is_skipped(meet: Meet, owner: Owner, opened: Channel):
    newer = meet()
    newer.welcome()
    _until(lambda: owner.welcomes)
    restart = b"\x92\x01\x06\x08\x01\x1a\x02\x10\x63"  # its only record has interruption 99
    for payload in (b"\x9a\x06\x03new", restart):  # field 99
        newer.socket.sendall(encode(payload, frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX))
    _until(lambda: owner.heard_calls)
    assert owner.heard_calls == [call_protocol.Restart(1, 0, (call_protocol.FaultRecord(0, "EXCEPTION", ""),))]
    assert owner.reasons == []
