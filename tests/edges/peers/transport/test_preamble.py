"""What comes before all else shows cheaply who may be redirected and who knows the token; garbage has no effect."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers.transport import preamble
from supervisor.edges.peers.transport.preamble import (
    AGAIN,
    CONNECTS_HERE,
    IS_RELAY,
    MAY_BE_REDIRECTED,
    NONCES_MAX,
    REDIRECTED,
    REFUSED,
    Preamble,
    Proofs,
    key_of,
    kind_of,
)

KEY = key_of(b"a token of the test")
TLS = b"\x16\x03\x01"
FRAME = b"\0\0\0\x05hello"


def near_and_far() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    far.setblocking(False)
    return near, far


@pytest.mark.parametrize("kind", [MAY_BE_REDIRECTED, CONNECTS_HERE, IS_RELAY])
@pytest.mark.parametrize("key", [b"", KEY])
def test_the_letter_and_its_proof_are_read_and_nothing_of_what_follows(kind: bytes, key: bytes):
    says = Preamble(kind, key).says
    near, far = near_and_far()
    with near, far:
        near.send(says + TLS)
        first = bytearray()
        assert preamble.read_first(far, first)
        assert first == says
        assert kind_of(bytes(first)) == kind
        assert far.recv(100) == TLS


def test_what_comes_byte_by_byte_is_read_as_far_as_it_has_come():
    says = Preamble(CONNECTS_HERE, KEY).says
    near, far = near_and_far()
    with near, far:
        first = bytearray()
        assert not preamble.read_first(far, first)
        for place in range(len(says)):
            near.send(says[place : place + 1])
            assert preamble.read_first(far, first) is (place == len(says) - 1)
        assert first == says


def test_who_ends_before_saying_all_has_said_nothing():
    near, far = near_and_far()
    with far:
        near.send(Preamble(CONNECTS_HERE, KEY).says[:5])
        near.close()
        with pytest.raises(ConnectionResetError):
            preamble.read_first(far, bytearray())


def test_a_proof_is_valid_once_with_the_key_and_for_its_letter_alone():
    proofs = Proofs(KEY)
    says = Preamble(CONNECTS_HERE, KEY).says
    assert not proofs.hold(IS_RELAY.upper() + says[1:])
    assert proofs.hold(says)
    assert not proofs.hold(says)
    assert not proofs.hold(Preamble(CONNECTS_HERE, key_of(b"some other token")).says)
    assert not proofs.hold(CONNECTS_HERE)
    assert not Proofs(b"").hold(Preamble(CONNECTS_HERE, KEY).says)


def test_a_leader_remembers_so_many_proofs_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preamble, "NONCES_MAX", 2)
    assert NONCES_MAX > 1024
    proofs, said = Proofs(KEY), [Preamble(CONNECTS_HERE, KEY).says for _ in range(3)]
    assert [proofs.hold(each) for each in said] == [True] * 3
    assert [proofs.hold(each) for each in reversed(said)] == [False, False, True]


@pytest.mark.parametrize("place", [("10.0.0.7", 4711), AGAIN])
def test_a_node_is_sent_on(place: tuple[str, int]):
    near, far = near_and_far()
    with near:
        node = Preamble(MAY_BE_REDIRECTED)
        near.send(node.says + TLS)
        preamble.redirect(far, place)
        assert node.read(near.recv(100))
        assert node.redirected_to == place
        assert near.recv(100) == b""


def test_a_refused_node_learns_why_and_its_terminal_is_safe():
    near, far = near_and_far()
    with near:
        node = Preamble(CONNECTS_HERE)
        preamble.refuse(far, "no token\x1b[2J")
        assert node.read(near.recv(100)) == "it refuses this node: no token[2J"
        assert node.refusal == "no token[2J"


def test_an_answer_to_a_node_that_has_gone_is_lost_quietly():
    near, far = near_and_far()
    near.close()
    preamble.refuse(far, "why")
    assert far.fileno() == -1


@pytest.mark.parametrize("first", [TLS, FRAME])
def test_all_else_goes_on(first: bytes):
    node = Preamble(CONNECTS_HERE)
    assert node.read(first) == ""
    assert node.redirected_to is None
    assert kind_of(first[:1]) == b""


@given(st.binary(max_size=60))
def test_an_answer_that_names_no_place_ends_the_attempt(garbage: bytes):
    assert Preamble(MAY_BE_REDIRECTED).read(REDIRECTED + garbage)
    assert Preamble(MAY_BE_REDIRECTED).read(REFUSED + garbage)
