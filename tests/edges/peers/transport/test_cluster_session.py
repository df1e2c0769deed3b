"""Between two nodes no message is lost or doubled, however often the connection breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers.transport import cluster_session as session
from supervisor.edges.peers.transport.cluster_session import Arrivals, Outbox, SessionError, numbered, read_numbered


def test_a_message_has_its_numbers_and_one_that_is_cut_ends_the_session():
    assert read_numbered(numbered(b"one", number=1, received=7)) == (b"one", 1, 7)
    assert read_numbered(numbered(b"", number=0, received=0)) == (b"", 0, 0)
    with pytest.raises(SessionError, match="a message is too short"):
        read_numbered(numbered(b"", number=0, received=0)[:-1])


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
