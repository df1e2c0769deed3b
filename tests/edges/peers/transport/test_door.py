"""What comes before all else shows cheaply who may be redirected and who knows the token; garbage has no effect."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers.transport import door
from supervisor.edges.peers.transport.door import (
    AGAIN,
    IS_RELAY,
    MAY_BE_SENT_ON,
    NONCES_MAX,
    REFUSED,
    SENT_ON,
    WANTS_IN,
    NodesDoor,
    Proofs,
    key_of,
    letter_of,
)

KEY = key_of(b"a token of the test")
TLS = b"\x16\x03\x01"
FRAME = b"\0\0\0\x05hello"


def near_and_far() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    return near, far


@pytest.mark.parametrize("letter", [MAY_BE_SENT_ON, WANTS_IN, IS_RELAY])
@pytest.mark.parametrize("key", [b"", KEY])
def test_the_letter_and_its_proof_are_read_and_nothing_of_what_follows(letter: bytes, key: bytes):
    says = NodesDoor(letter, key).says
    near, far = near_and_far()
    with near, far:
        near.send(says + TLS)
        first = bytearray()
        assert door.read_first(far, first)
        assert first == says
        assert letter_of(bytes(first)) == letter
        assert far.recv(100) == TLS


def test_what_comes_byte_by_byte_is_read_as_far_as_it_has_come():
    says = NodesDoor(WANTS_IN, KEY).says
    near, far = near_and_far()
    with near, far:
        first = bytearray()
        assert not door.read_first(far, first)
        for place in range(len(says)):
            near.send(says[place : place + 1])
            assert door.read_first(far, first) is (place == len(says) - 1)
        assert first == says


def test_who_ends_before_saying_all_has_said_nothing():
    near, far = near_and_far()
    with far:
        near.send(NodesDoor(WANTS_IN, KEY).says[:5])
        near.close()
        with pytest.raises(ConnectionResetError):
            door.read_first(far, bytearray())


def test_a_proof_is_valid_once_with_the_key_and_for_its_letter_alone():
    proofs = Proofs(KEY)
    says = NodesDoor(WANTS_IN, KEY).says
    assert not proofs.hold(IS_RELAY.upper() + says[1:])
    assert proofs.hold(says)
    assert not proofs.hold(says)
    assert not proofs.hold(NodesDoor(WANTS_IN, key_of(b"some other token")).says)
    assert not proofs.hold(WANTS_IN)
    assert not Proofs(b"").hold(NodesDoor(WANTS_IN, KEY).says)


def test_a_leader_remembers_so_many_proofs_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door, "NONCES_MAX", 2)
    assert NONCES_MAX > 1024
    proofs, said = Proofs(KEY), [NodesDoor(WANTS_IN, KEY).says for _ in range(3)]
    assert [proofs.hold(each) for each in said] == [True] * 3
    assert [proofs.hold(each) for each in reversed(said)] == [False, False, True]


@pytest.mark.parametrize("place", [("10.0.0.7", 4711), AGAIN])
def test_a_node_is_sent_on(place: tuple[str, int]):
    near, far = near_and_far()
    with near:
        node = NodesDoor(MAY_BE_SENT_ON)
        near.send(node.says + TLS)
        door.send_on(far, place)
        assert node.read(near.recv(100))
        assert node.sent_on == place
        assert near.recv(100) == b""


def test_a_refused_node_learns_why_and_its_terminal_is_safe():
    near, far = near_and_far()
    with near:
        node = NodesDoor(WANTS_IN)
        door.refuse(far, "no token\x1b[2J")
        assert node.read(near.recv(100)) == "it refuses this node: no token[2J"
        assert node.refusal == "no token[2J"


def test_an_answer_to_a_node_that_has_gone_is_lost_quietly():
    near, far = near_and_far()
    near.close()
    door.refuse(far, "why")
    assert far.fileno() == -1


@pytest.mark.parametrize("first", [TLS, FRAME])
def test_all_else_goes_on(first: bytes):
    node = NodesDoor(WANTS_IN)
    assert node.read(first) == ""
    assert node.sent_on is None
    assert letter_of(first[:1]) == b""


@given(st.binary(max_size=60))
def test_an_answer_that_names_no_place_ends_the_attempt(garbage: bytes):
    assert NodesDoor(MAY_BE_SENT_ON).read(SENT_ON + garbage)
    assert NodesDoor(MAY_BE_SENT_ON).read(REFUSED + garbage)
