"""Is an interruption written as one line, and read back?"""

from __future__ import annotations

import pytest

from worker_client.inprocess.attribution import Interruption, InterruptionRecord, describe

EXCEPTION = Interruption.EXCEPTION


@pytest.mark.parametrize("kind", Interruption)
def test_a_record_is_read_back(kind: Interruption):
    record = InterruptionRecord(12, kind)
    assert InterruptionRecord.from_str(str(record)) == record


@pytest.mark.parametrize("text", ["", "3", "3:", "3:NOTHING", "-1:EXCEPTION", "x:EXCEPTION", "3:exception"])
def test_what_is_no_record(text: str):
    with pytest.raises(ValueError, match="cannot read the interruption record"):
        InterruptionRecord.from_str(text)


def test_one_rank():
    assert describe([InterruptionRecord(1, EXCEPTION)]) == "Interruption.EXCEPTION affecting ranks {1}"


def test_several_kinds_and_ranks_are_joined():
    records = [
        InterruptionRecord(5, Interruption.TERMINATED),
        InterruptionRecord(3, EXCEPTION),
        InterruptionRecord(1, Interruption.TERMINATED),
        InterruptionRecord(3, EXCEPTION),
    ]
    assert describe(records) == (
        "Interruption.TERMINATED affecting ranks {1, 5}, Interruption.EXCEPTION affecting ranks {3}"
    )


@pytest.mark.parametrize(
    ("count", "abridged", "verbose"),
    [
        (8, "{0, 1, 2, 3, 4, 5, 6, 7}", "{0-7}"),
        (9, "{0, 1, 2, 3, ..., 5, 6, 7, 8} (total: 9)", "{0-8}"),
        (1000, "{0, 1, 2, 3, ..., 996, 997, 998, 999} (total: 1000)", "{0-999}"),
    ],
)
def test_many_ranks(count: int, abridged: str, verbose: str, monkeypatch: pytest.MonkeyPatch):
    records = [InterruptionRecord(rank, EXCEPTION) for rank in reversed(range(count))]
    monkeypatch.delenv("NVRX_LOG_RANK_FORMAT_VERBOSE", raising=False)
    assert describe(records) == f"Interruption.EXCEPTION affecting ranks {abridged}"
    monkeypatch.setenv("NVRX_LOG_RANK_FORMAT_VERBOSE", "1")
    assert describe(records) == f"Interruption.EXCEPTION affecting ranks {verbose}"


def test_ranges_with_gaps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NVRX_LOG_RANK_FORMAT_VERBOSE", "1")
    records = [InterruptionRecord(rank, EXCEPTION) for rank in (0, 1, 3, 5, 6, 7)]
    assert describe(records) == "Interruption.EXCEPTION affecting ranks {0-1, 3, 5-7}"
