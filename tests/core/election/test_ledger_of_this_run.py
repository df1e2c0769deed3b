"""If a process is elected after an end of the job, to which run does it belong?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.election.ledger_of_this_run import of_this_run
from supervisor.core.facts import JobState, Verdict
from supervisor.core.leader_ledger import Former, Ledger, after_all_know

ENDED = Ledger(4, 4, 1, verdict=Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0"))
assert ENDED.verdict is not None
VERDICT = ENDED.verdict
TOLD = after_all_know(ENDED, 6)


@pytest.mark.parametrize(
    ("found", "met_term", "expected"),
    [
        (TOLD, 6, (TOLD, None)),  # the process missed the end
        (TOLD, 3, (TOLD, None)),
        (TOLD, 0, (Ledger(), Former(VERDICT, 6))),  # the job id is used again
        (TOLD, 7, (Ledger(), Former(VERDICT, 6))),  # the process met the next run's first leader, which left no ledger
        (ENDED, 0, (ENDED, None)),  # nobody was told of the end: that is still to come
        (Ledger(4, 4, 1), 0, (Ledger(4, 4, 1), None)),
        (Ledger(), 0, (Ledger(), None)),
    ],
)
def test_what_a_leader_begins_with(found: Ledger, met_term: int, expected: tuple[Ledger, Former | None]):
    assert of_this_run(found, term=8, met_term=met_term) == expected


def test_an_end_that_an_older_version_has_told_is_of_all_leaders_before_this_one():
    told = msgspec.structs.replace(ENDED, is_told=True)
    assert of_this_run(told, term=8, met_term=7) == (told, None)
    assert of_this_run(told, term=8, met_term=0) == (Ledger(), Former(VERDICT, 7))
