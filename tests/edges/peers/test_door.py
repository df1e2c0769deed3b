"""A letter before all else says whether a newcomer may be redirected; garbage has no effect."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers.door import IS_RELAY, MAY_BE_SENT_ON, SENT_ON, WANTS_IN, LeadersDoor, NodesDoor

TLS = b"\x16\x03\x01"
FRAME = b"\0\0\0\x05hello"


def test_only_who_may_be_sent_on_is_sent_on():
    leader = LeadersDoor(lambda: ("10.0.0.7", 4711))
    assert leader.is_first
    for letter in (WANTS_IN, IS_RELAY):
        assert leader.read(letter + TLS) == (TLS, letter, b"", "")
    for first in (TLS, FRAME):
        assert leader.read(first) == (first, b"", b"", "")
    passed = leader.read(MAY_BE_SENT_ON + TLS)
    assert passed.why == "it is sent on to 10.0.0.7"
    node = NodesDoor(MAY_BE_SENT_ON)
    assert node.says == MAY_BE_SENT_ON
    assert node.read(passed.answer).why
    assert node.sent_on == ("10.0.0.7", 4711)


def test_where_nobody_has_room_the_leader_goes_on_itself():
    assert LeadersDoor(lambda: None).read(MAY_BE_SENT_ON + TLS) == (TLS, MAY_BE_SENT_ON, b"", "")
    alone = LeadersDoor(None)
    assert not alone.is_first
    assert alone.read(MAY_BE_SENT_ON) == (b"", MAY_BE_SENT_ON, b"", "")
    node = NodesDoor(WANTS_IN)
    assert node.read(FRAME) == (FRAME, b"", b"", "")
    assert node.sent_on is None


@given(st.binary(max_size=60))
def test_an_answer_that_names_no_place_ends_the_attempt(garbage: bytes):
    node = NodesDoor(MAY_BE_SENT_ON)
    passed = node.read(SENT_ON + garbage)
    assert passed.rest == b""
    assert passed.why


def test_who_has_spoken_already_is_sent_on_before_anything_is_made_for_it():
    places = [("10.0.0.7", 4711), None]
    door = LeadersDoor(lambda: places.pop(0))
    for said, is_sent_on in ((b"", False), (WANTS_IN + TLS, False), (MAY_BE_SENT_ON + TLS, True)):
        near, far = socket.socketpair()
        with near, far:
            far.setblocking(False)
            near.send(said)
            assert door.sends_on(far) is is_sent_on
            if is_sent_on:
                node = NodesDoor(MAY_BE_SENT_ON)
                node.read(near.recv(100))
                assert node.sent_on == ("10.0.0.7", 4711)
                assert near.recv(100) == b""
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        near.send(MAY_BE_SENT_ON + TLS)
        assert not door.sends_on(far)
        assert door.read(far.recv(100)) == (TLS, MAY_BE_SENT_ON, b"", "")  # it is not asked for a place again
