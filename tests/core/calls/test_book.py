"""Who is gone, by which number; what is kept for those who join late; what fits into a frame."""

from __future__ import annotations

import pytest

from supervisor.core.calls import book
from supervisor.core.calls.book import Member, Replacement, State
from supervisor.core.calls.words import Begin, CallSettings, Exchanged, Interruption


def state(here: dict[int, int], *, gone: dict[int, int | None], joined: dict[int, int | None]) -> State:
    """Members and their numbers; `joined` are processes that stand in for some of those that are gone."""
    made = State(world_size=len(here) + len(gone))
    made.members = {member: Member("a", rank) for member, rank in here.items()}
    made.gone = dict(gone)
    made.replacing = {member: Replacement("a", rank, entered=True) for member, rank in joined.items()}
    return made


@pytest.mark.parametrize(
    ("here", "gone", "joined", "terminated", "kept"),
    [
        ({0: 0, 1: 1}, {}, {}, (), []),
        ({0: 0, 2: 2}, {1: 1}, {}, (1,), []),
        ({0: 0, 5: 1}, {1: None, 2: None}, {}, (2, 3), []),
        ({0: 0, 2: 2}, {1: 1}, {1: 1}, (), [1]),
        ({0: 0}, {1: 1, 2: 2}, {2: 2}, (1,), [2]),
        # Numbers that nobody has said are found by elimination …
        ({0: 0, 2: 2}, {1: None}, {1: None}, (), [1]),
        ({0: 0}, {1: None, 2: None}, {1: None, 2: None}, (), [1, 2]),
        ({0: 0}, {1: None, 2: 2}, {1: None}, (2,), [1]),
        # … and where that is ambiguous, the process that stands in is turned away.
        ({0: 0}, {1: None, 2: None}, {1: None}, (1, 2), []),
    ],
)
def test_who_is_terminated(
    here: dict[int, int],
    gone: dict[int, int | None],
    joined: dict[int, int | None],
    terminated: tuple[int, ...],
    kept: list[int],
) -> None:
    made = state(here, gone=gone, joined=joined)
    assert book.terminated_ranks(made, len(here) + len(gone)) == terminated
    assert sorted(made.replacing) == kept


def test_a_fault_is_recorded_once_by_the_number_of_its_iteration() -> None:
    made = state({4: 1}, gone={}, joined={})
    for reason in ("first", "second"):
        book.add_fault(made, 4, Interruption.EXCEPTION, reason, rank=9)
    book.add_fault(made, 4, Interruption.TERMINATED, "x" * 10_000)
    (record,) = book.records(made)
    assert (record.rank, record.reason) == (1, "first")
    assert len(made.faults[4][Interruption.TERMINATED].reason) == book.REASON_CHARS_MAX


def test_records_of_thousands_of_ranks_fit_into_a_frame() -> None:
    made = State(world_size=5000)
    for member in range(5000):
        book.add_fault(made, member, Interruption.EXCEPTION, "y" * 600, rank=member)
    records = book.records(made)
    assert len(records) == 5000
    assert sum(len(each.reason) + 8 for each in records) < 64 * 1024


def test_what_is_kept_for_late_ones_is_bounded() -> None:
    made = State(world_size=2)
    book.open_call(made, 1, CallSettings())
    book.remember(made, Begin(1, 1, 2))
    assert made.can_replay
    book.remember(made, Exchanged(1, 1, "big", ((0, "z" * book.REPLAY_CHARS_MAX),)))
    assert not made.can_replay
    assert (made.history, made.replay) == ([], [])


def test_settings_that_differ_give_nobody_up_earlier_than_any_rank_says() -> None:
    merged = book.merge_settings(
        CallSettings(last_call_wait_s=1.0, barrier_timeout_s=9.0), CallSettings(barrier_timeout_s=5.0)
    )
    assert (merged.last_call_wait_s, merged.barrier_timeout_s) == (1.0, 9.0)
