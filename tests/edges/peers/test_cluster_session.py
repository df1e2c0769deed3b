"""Between two nodes no message is lost, doubled, changed or replayed, however often the connection breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers import cluster_session as session
from supervisor.edges.peers.cluster_session import Arrivals, Outbox, Seal, SessionError

TOKEN = b"a token that both know"


def test_only_who_knows_the_token_has_the_proof():
    parts = (session.fresh_nonce(), b"job", b"node-1")
    given_proof = session.proof(TOKEN, "node", *parts)
    assert session.is_proof(given_proof, TOKEN, "node", *parts)
    assert not session.is_proof(given_proof, TOKEN, "leader", *parts)
    assert not session.is_proof(given_proof, b"another", "node", *parts)
    assert not session.is_proof(given_proof, TOKEN, "node", session.fresh_nonce(), *parts[1:])
    assert not session.is_proof(given_proof, TOKEN, "node", parts[0], b"jo", b"bnode-1")


def test_a_message_is_good_once_in_its_place_and_as_it_was_sent():
    keys = session.derive_keys(TOKEN, b"l" * 32, b"n" * 32)
    sender, receiver = Seal(keys.to_leader), Seal(keys.to_leader)
    first = sender.close(b"one", number=1, received=0)
    second = sender.close(b"two", number=2, received=7)
    assert receiver.open(first) == (b"one", 1, 0)
    with pytest.raises(SessionError):
        receiver.open(first)  # a replay
    assert Seal(keys.to_leader).open(first) == (b"one", 1, 0)
    for wrong in (second[:-1], second + b"x", b"", second[:20], bytes([second[0] ^ 1]) + second[1:]):
        fresh = Seal(keys.to_leader)
        fresh.open(first)
        with pytest.raises(SessionError):
            fresh.open(wrong)
    with pytest.raises(SessionError):
        Seal(keys.to_node).open(first)  # sent back to its sender


@given(
    st.lists(st.one_of(st.just("put"), st.just("send"), st.just("break"), st.integers(0, 5)), max_size=60),
)
def test_what_was_put_arrives_once_and_in_order_over_any_number_of_connections(script: list[str | int]):
    outbox, arrivals = Outbox(), Arrivals()
    wire: list[tuple[int, bytes]] = []
    taken: list[bytes] = []
    put = 0

    def deliver(count: int) -> None:
        for number, payload in wire[:count]:
            if arrivals.is_new(number):
                taken.append(payload)
        del wire[:count]
        outbox.confirm(arrivals.received)

    for word in script:
        match word:
            case "put":
                put += 1
                outbox.put(str(put).encode())
            case "send":
                wire += outbox.take_unsent()
            case "break":
                wire.clear()
                outbox.begin_connection()
            case _:
                deliver(int(word))
    outbox.begin_connection()
    wire[:] = outbox.take_unsent()
    deliver(len(wire))
    assert taken == [str(number).encode() for number in range(1, put + 1)]
    assert outbox.is_empty


def test_a_gap_a_confirmation_of_nothing_and_a_flood_end_the_session(monkeypatch: pytest.MonkeyPatch):
    arrivals = Arrivals()
    assert arrivals.is_new(0)
    with pytest.raises(SessionError, match="message 2 came after 0"):
        arrivals.is_new(2)
    outbox = Outbox()
    with pytest.raises(SessionError, match="confirms message 1"):
        outbox.confirm(1)
    monkeypatch.setattr(session, "KEPT_BYTES_MAX", 10 + session.KEPT_BYTES_EACH)
    outbox.put(b"x" * 10)
    with pytest.raises(SessionError, match="wait for it"):
        outbox.put(b"x")
