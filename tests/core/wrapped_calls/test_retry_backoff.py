"""A fault after progress never causes a wait; one that repeats immediately does, and finally ends the call."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.wrapped_calls import retry_backoff
from supervisor.core.wrapped_calls.call_messages import CallSettings, FaultRecord, Interruption
from supervisor.core.wrapped_calls.retry_backoff import AT_ONCE_MAX, IN_A_ROW_MAX, PAUSE_MAX_S, PROGRESS_S, FailedInARow

SETTINGS = CallSettings()
FAILED = FaultRecord(1, Interruption.EXCEPTION, "ValueError: bad loss")
SILENT = FaultRecord(1, Interruption.SOFT_TIMEOUT, "was silent")


def after(before: FailedInARow, *members: int, ran_s: float = 0.0, record: FaultRecord = FAILED) -> FailedInARow:
    return retry_backoff.after(before, frozenset(members), record, SETTINGS, ran_s=ran_s)


def repeated(times: int) -> FailedInARow:
    record = FailedInARow()
    for _ in range(times):
        record = after(record, 1)
    return record


def test_iterations_that_come_to_nothing_are_counted_while_the_same_rank_fails():
    record = after(after(FailedInARow(), 1, 2), 2, 3)
    assert (record.in_a_row, record.first) == (2, 2)
    assert after(record, 1).in_a_row == 1  # another rank: another fault
    assert after(record, 1, 2, 3) == FailedInARow(3, frozenset({1, 2, 3}), 2)


def test_where_processes_have_ended_the_others_are_not_blamed_for_what_that_made_them_raise():
    def told(*interruptions: Interruption) -> dict[Interruption, FaultRecord]:
        return {each: FaultRecord(0, each, "") for each in interruptions}

    raised = told(Interruption.EXCEPTION)
    assert retry_backoff.blamed({1: raised, 2: raised}) == {1, 2}
    for lost in (Interruption.TERMINATED, Interruption.UNRESPONSIVE):
        assert retry_backoff.blamed({1: raised, 2: told(Interruption.EXCEPTION, lost), 3: raised}) == {2}
    # No end is noted of a process that the hard timeout has ended.
    ended = told(Interruption.SOFT_TIMEOUT, Interruption.HARD_TIMEOUT)
    assert retry_backoff.blamed({1: ended, 2: told(Interruption.TERMINATED), 3: raised}) == {1, 2}


def test_progress_makes_up_for_all_that_was_before():
    assert after(repeated(20), 1, ran_s=PROGRESS_S).in_a_row == 0
    assert after(repeated(20), 1, ran_s=PROGRESS_S - 0.1).in_a_row == 21


def test_silence_is_no_progress_however_late_it_is_known():
    soft_s = SETTINGS.soft_timeout_s
    assert after(repeated(1), 1, ran_s=soft_s + PROGRESS_S, record=SILENT).in_a_row == 2
    assert after(repeated(1), 1, ran_s=2 * soft_s, record=SILENT).in_a_row == 0


def test_the_first_begin_again_at_once_and_the_others_later_and_later():
    pauses = [retry_backoff.pause_s(repeated(times), SETTINGS) for times in range(IN_A_ROW_MAX)]
    assert pauses[: AT_ONCE_MAX + 1] == [0.0] * (AT_ONCE_MAX + 1)
    assert pauses[AT_ONCE_MAX + 1 : AT_ONCE_MAX + 5] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == PAUSE_MAX_S
    assert pauses == sorted(pauses)


@pytest.mark.parametrize(("setting", "longest_s"), [({"barrier_timeout_s": 8.0}, 2.0), ({"hard_timeout_s": 3.0}, 1.5)])
def test_nobody_waits_so_long_that_it_is_given_up(setting: dict[str, float], longest_s: float):
    settings = msgspec.structs.replace(SETTINGS, **setting)
    assert retry_backoff.pause_s(repeated(IN_A_ROW_MAX - 1), settings) == longest_s


def test_some_day_it_is_enough():
    assert not repeated(IN_A_ROW_MAX - 1).is_hopeless
    assert repeated(IN_A_ROW_MAX).is_hopeless
