"""Which of two ledgers was written later, and what does one say of its cycle?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.facts import JobState, Verdict
from supervisor.core.leader_ledger import Ledger, after_all_know, as_before, newer

ENDED = Ledger(4, 4, 1, verdict=Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0"), term=3)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (Ledger(5, 5, 9, term=2), Ledger(4, 4, 1, term=3)),  # the term counts first: the backend may have lost data
        (Ledger(3, 4, 1, term=3), Ledger(4, 4, 1, term=3)),
        (Ledger(4, 4, 1, term=3), Ledger(4, 5, 1, term=3)),  # a round was opened
        (Ledger(4, 5, 1, term=3), Ledger(4, 5, 2, term=3)),
        (ENDED, after_all_know(ENDED, 3)),
    ],
)
def test_the_later_one_is_taken_in_either_order(earlier: Ledger, later: Ledger):
    assert newer(earlier, later) == newer(later, earlier) == later


def test_a_ledger_of_a_later_term_counts_as_written_before_this_lead():
    assert as_before(ENDED, 2) == msgspec.structs.replace(ENDED, term=1)
    assert as_before(ENDED, 3) == ENDED


@pytest.mark.parametrize(
    ("ledger", "runs"),
    [
        (Ledger(), False),
        (Ledger(4, 4), True),
        (Ledger(4, 5), False),  # a round is open
        (Ledger(4, 4, stop_signal=15), False),
        (ENDED, False),
    ],
)
def test_a_cycle_runs_until_a_round_opens_or_the_job_ends(ledger: Ledger, runs: bool):
    assert ledger.is_running is runs


def test_a_ledger_of_an_older_version_does_not_say_who_told_the_end():
    assert msgspec.json.decode(b'{"cycle": 3, "is_told": true}', type=Ledger).told_by == 0
