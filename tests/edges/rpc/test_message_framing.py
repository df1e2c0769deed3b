"""Are messages whole, however their bytes arrive, and is what can't be read an error before it is held?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.rpc.message_framing import Messages, framed
from supervisor.edges.rpc.statuses import CallError, MessageTooLargeError, Status


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_messages_are_the_same_in_any_parts(sent: list[bytes], part_bytes: int):
    data = b"".join(map(framed, sent))
    messages = Messages("request", 50)
    found: list[bytes] = []
    for begin in range(0, len(data), part_bytes):
        messages.take(data[begin : begin + part_bytes], part_bytes + 1)
        while (message := messages.next()) is not None:
            found.append(message)
    messages.check_end()
    assert found == sent
    assert messages.unacknowledged_bytes == (part_bytes + 1) * -(-len(data) // part_bytes)


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"\1\0\0\0\1", CallError, Status.UNIMPLEMENTED),
        (b"\0\0\0\0\x33", MessageTooLargeError, Status.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", MessageTooLargeError, Status.RESOURCE_EXHAUSTED),
    ],
)
def test_what_can_not_be_read(data: bytes, kind: type[CallError], status: Status):
    messages = Messages("answer", 50)
    messages.take(data, len(data))
    with pytest.raises(kind, match="cannot read the answer") as told:
        messages.next()
    assert told.value.status is status


def test_a_last_message_that_is_cut_off():
    messages = Messages("request", 50)
    messages.take(b"\0\0\0\0\2x", 6)
    assert messages.next() is None
    with pytest.raises(CallError, match="cut off"):
        messages.check_end()
