"""Are cause, culprit and advice those that a person names? Logs of one cycle each, as their ranks printed them."""

from __future__ import annotations

import pytest

from supervisor.core.attribution import log_verdict as judging
from supervisor.core.attribution import tracebacks
from supervisor.core.attribution.log_patterns import Advice
from supervisor.core.attribution.log_verdict import ALIKE_CYCLES, Analysis, analyse
from tests.core.attribution.labelled import Labelled, read
from tests.core.attribution.measured import judged

LOGS = read("labelled_logs.txt")
FEW = 100
SAME = ["0: Traceback (most recent call last):", '0:   File "a.py", line 3, in f', "0: ValueError: 7 of 9 at 0x7f00"]


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


def test_a_file_that_one_rank_misses_may_be_missing_on_its_node_alone() -> None:
    error = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "FileNotFoundError: [Errno 2]: '/scratch/a'",
    ]
    alone = [f"0: {line}" for line in error]
    assert analyse(alone).advice is Advice.RESTART
    assert analyse([*alone, *(f"1: {line}" for line in error)]).advice is Advice.STOP


def ended(*line_of_cycle: str) -> list[Advice]:
    earlier, advice = list[str](), list[Advice]()
    for line in line_of_cycle:
        found = analyse([f"{rank}: step 1" for rank in range(8)] + [line], earlier=earlier)
        earlier.append(found.signature)
        advice.append(found.advice)
    return advice


def test_nodes_that_are_lost_one_after_the_other_are_no_failure_of_the_program() -> None:
    assert Advice.STOP not in ended(*["0: RuntimeError: Connection reset by peer"] * 5)


def test_another_failure_in_between_starts_the_count_again() -> None:
    signature = analyse(SAME).signature
    assert analyse(SAME, earlier=[signature, "something else", signature]).advice is Advice.RESTART


def test_the_reason_names_rank_cause_and_place() -> None:
    assert analyse(SAME).reason == "rank 0: ValueError: 7 of 9 at 0x7f00 at a.py:3"


def test_a_silent_rank_is_suspected_only_where_most_others_spoke() -> None:
    lines = [f"{rank}: step 1" for rank in range(4)] + ["0: Connection reset by peer"]
    found = analyse(lines)
    assert found.culprits == ()
    assert "does not show which rank" in found.reason


def test_nothing_wrong_is_continue_while_it_runs_and_unknown_at_its_end() -> None:
    assert analyse(["0: step 1"], has_ended=False).advice is Advice.CONTINUE
    assert analyse(["0: step 1"]).advice is Advice.UNKNOWN


def test_a_line_without_a_rank_accuses_nobody() -> None:
    found = analyse(["NVRM: Xid (PCI:0000:3b:00): 48, DBE"])
    assert (found.findings[0].kind, found.culprits) == ("xid", ())


def test_what_a_rank_survives_is_no_fault_while_the_cycle_runs() -> None:
    went_on = [*SAME, *(f"0: step {step} loss 2.{step}" for step in range(3))]
    assert analyse(went_on, has_ended=False).advice is Advice.CONTINUE
    assert analyse(went_on).advice is Advice.RESTART  # buffered output comes after the end
    others = [*SAME, *(f"1: step {step} loss 2.{step}" for step in range(3))]
    assert analyse(others, has_ended=False).advice is Advice.RESTART


def test_numbers_stay_broken_while_they_are_printed_so() -> None:
    lines = [f"0: step {step} loss: nan" for step in range(9)]
    assert analyse(lines, has_ended=False).advice is Advice.RESTART
    healed = [*lines, *(f"0: step {step} loss 2.{step}" for step in range(9, 12))]
    assert analyse(healed, has_ended=False).advice is Advice.CONTINUE


def test_the_rank_that_prints_the_mean_loss_is_not_its_culprit() -> None:
    alone = analyse(["0: step 3 loss: nan", "1: ready"])
    assert (alone.findings[0].kind, alone.culprits) == ("nan", ())
    assert analyse(["0: step 3 loss 2.1", "1: step 3 loss: nan"]).culprits == (1,)


def test_a_rank_without_any_line_is_a_silent_one() -> None:
    assert analyse(["0: Connection reset by peer", "2: Connection reset by peer"]).culprits == (1,)


def test_what_only_records_something_is_no_fault() -> None:
    assert analyse(["0: NVRM: Xid (PCI:0000:1b:00): 63, Row Remapper"]).findings == ()


@pytest.mark.parametrize(
    "before", ["[rank3]: [rank2]: ", "[default1]:[rank3]: ", "[rank3]: [default1]: ", "[default3]:"]
)
def test_a_traceback_with_several_prefixes_of_torch_is_that_of_the_newest_rank(before: str) -> None:
    """The hook of each process group adds one; torchrun adds the local rank."""
    assert analyse([line.replace("0: ", before, 1) for line in SAME]).reason == analyse(SAME).reason.replace(
        "0", "3", 1
    )


def test_numbers_that_are_no_ranks_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (judging, tracebacks):
        monkeypatch.setattr(module, "RANKS_MAX", FEW)
    analysis = Analysis()
    for number in range(2 * FEW):
        analysis.take(f"{number}: CUDA error: an illegal memory access was encountered")
        analysis.take(f"[rank{number}]: loss nan")
    analysis.take(f"{'9' * 1_900}: step")
    assert len(analysis.ranks) == FEW
    assert all(len(seen.last_of_rank) <= FEW for seen in analysis.seen.values())
