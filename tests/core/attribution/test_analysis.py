"""Are cause, culprit and advice those that a person names? Logs of one cycle each, as their ranks printed them."""

from __future__ import annotations

import pytest

from supervisor.core.attribution.analysis import ALIKE_CYCLES, Judgement, analyse
from supervisor.core.attribution.signs import Advice
from tests.core.attribution.labelled import Labelled, read

LOGS = read("labelled_logs.txt")
SAME = ["0: Traceback (most recent call last):", '0:   File "a.py", line 3, in f', "0: ValueError: 7 of 9 at 0x7f00"]


def judged(log: Labelled) -> Judgement:
    return analyse(log.lines, has_ended=log.advice != "CONTINUE")


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_labelled_log(log: Labelled) -> None:
    found = judged(log)
    assert (found.findings[0].kind if found.findings else "") == log.kind, found
    assert found.culprits == log.culprits, found.reason
    assert found.advice == log.advice, found.reason


def test_what_fails_alike_in_each_cycle_is_not_tried_again() -> None:
    earlier: list[str] = []
    for cycle in range(ALIKE_CYCLES):
        found = analyse([line.replace("0x7f00", hex(cycle)) for line in SAME], earlier=earlier)
        assert found.advice == (Advice.STOP if cycle == ALIKE_CYCLES - 1 else Advice.RESTART)
        earlier.append(found.signature)
    other = analyse(["0: OSError: [Errno 5] Input/output error"], earlier=earlier)
    assert other.advice != Advice.STOP


def test_another_failure_in_between_starts_the_count_again() -> None:
    signature = analyse(SAME).signature
    assert analyse(SAME, earlier=[signature, "something else", signature]).advice is Advice.RESTART


def test_the_reason_names_rank_cause_and_place() -> None:
    assert analyse(SAME).reason == "rank 0: ValueError: 7 of 9 at 0x7f00 at a.py:3"


def test_a_silent_rank_is_suspected_only_where_most_others_spoke() -> None:
    lines = [f"{rank}: step 1" for rank in range(4)] + ["0: Connection reset by peer"]
    found = analyse(lines)
    assert found.culprits == ()
    assert "can't be told" in found.reason


def test_nothing_wrong_is_continue_while_it_runs_and_unknown_at_its_end() -> None:
    assert analyse(["0: step 1"], has_ended=False).advice is Advice.CONTINUE
    assert analyse(["0: step 1"]).advice is Advice.UNKNOWN


def test_a_line_without_a_rank_accuses_nobody() -> None:
    found = analyse(["NVRM: Xid (PCI:0000:3b:00): 48, DBE"])
    assert (found.findings[0].kind, found.culprits) == ("xid", ())
