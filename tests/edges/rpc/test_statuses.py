"""Is a reason the same after its way over the wire, and is a status that is none never taken for one?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.rpc.statuses import (
    TEXT_CHARACTERS_MAX,
    Status,
    percent_decoded,
    percent_encoded,
    status_of,
)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=TEXT_CHARACTERS_MAX))
def test_a_reason_arrives_as_it_was(text: str):
    encoded = percent_encoded(text)
    assert encoded.isascii()
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert percent_decoded(encoded) == text


@given(st.binary())
def test_any_bytes_are_a_reason_of_bounded_length(encoded: bytes):
    assert len(percent_decoded(encoded)) <= TEXT_CHARACTERS_MAX


@pytest.mark.parametrize("number", [b"", b"17", b"-1", b"0x1", b"00", "٣".encode(), b"9" * 5000, b"1\n"])
def test_no_status(number: bytes):
    assert status_of(number) is None


def test_each_status():
    assert [status_of(b"%d" % number) for number in range(17)] == list(Status)
