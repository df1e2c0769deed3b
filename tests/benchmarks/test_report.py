"""Do the bench's arithmetic and pages hold? The published figures must follow from the samples."""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import report, runs
from tests.benchmarks.conditions import Conditions
from tests.benchmarks.figures import Summary, interleave, percentile, ratios
from tests.benchmarks.headlines import HEADLINES, SHORTFALLS, headlines
from tests.benchmarks.launch import Event, Told
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit, judge, show
from tests.benchmarks.runs import Run

DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"torchrun": "torchrun", "reference": "reference", "holdfast": "holdfast"}


def restart_row(**more: object) -> Row:
    row = Row("restart", Group.SPEED, "restart", Unit.SECONDS, **more)  # pyright: ignore[reportArgumentType]
    row.samples = {"torchrun": [0.2, 0.3, 0.4], "reference": [2.0, None, 3.0], "holdfast": [0.05, 0.03, 0.04]}
    return row


def conditions() -> Conditions:
    return Conditions("2026-01-02 03:04 UTC", "abc1234", "A processor", 2, 4.0, "6.1", "3.11.7", {"torch": "2.13.0"})


# --- arithmetic ----------------------------------------------------------------------------------------------------


def test_summary():
    summary = Summary.of([3.0, 1.0, 2.0, 10.0])
    assert (summary.count, summary.median, summary.low, summary.high) == (4, 2.5, 1.0, 10.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100), (0, 1), (99.5, 100)])
def test_percentile_is_a_sample(percent: float, expected: float):
    samples = [float(value) for value in range(1, 101)]
    random.Random(1).shuffle(samples)
    assert percentile(samples, percent) == expected


def test_p99_of_few_is_the_largest():
    assert percentile([1.0, 5.0, 2.0], 99) == 5.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_leaves_the_right_share_below(samples: list[float], percent: float):
    value = percentile(samples, percent)
    assert value in samples
    assert sum(sample <= value for sample in samples) >= len(samples) * percent / 100 - 1e-6


def test_ratios_pair_runs_that_stood_together():
    assert ratios([1.0, 2.0, 3.0], [10.0, 10.0, 10.0]) == [0.1, 0.2, 0.3]


def test_ratios_with_more_runs_of_ours():
    ours = [float(value) for value in range(1, 10)]
    assert ratios(ours, [1.0, 1.0, 1.0]) == [2.0, 5.0, 8.0], "the middle of each third"


def test_ratios_leave_failed_runs_out():
    assert ratios([1.0, None, 3.0], [2.0, 2.0, None]) == [0.5]
    assert ratios([], [1.0]) == []


def test_interleave_takes_turns():
    assert [key for key, _ in interleave({"a": 3, "b": 3, "c": 3})] == list("abcabcabc")


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 40), min_size=1))
def test_interleave_runs_everyone_as_often_as_asked(runs: dict[str, int]):
    turns = list(interleave(runs))
    assert Counter(key for key, _ in turns) == Counter(runs)
    for key in runs:
        assert [number for each, number in turns if each == key] == list(range(runs[key]))


def test_interleave_spreads_the_rare():
    turns = [key for key, _ in interleave({"often": 90, "rare": 3})]
    places = [place for place, key in enumerate(turns) if key == "rare"]
    assert all(10 < later - sooner < 40 for sooner, later in pairwise(places))


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_a_target_is_judged_by_the_statistic_of_its_row():
    samples: list[float | None] = [*[0.01] * 9, 0.5]
    for statistic, met in ((Statistic.MEDIAN, True), (Statistic.P99, False), (Statistic.WORST, False)):
        row = Row("x", Group.SPEED, "x", Unit.SECONDS, Target(at_most=0.02), statistic, {"holdfast": samples})
        assert [found.met for found in judge(row, LABELS)] == [met], statistic


def test_a_share_is_judged_by_the_median_of_the_pairs():
    row = restart_row(target=Target(share_of={"torchrun": 1 / 5, "reference": 1 / 100}))
    assert statistics.median(row.ratios_to("torchrun")) == pytest.approx(0.1)
    assert [(found.wanted, found.met) for found in judge(row, LABELS)] == [
        ("≤ 1/5 of torchrun", True),
        ("≤ 1/100 of reference", False),
    ]


def test_one_early_verdict_is_too_many():
    row = Row("x", Group.SPEED, "x", Unit.SECONDS, Target(never_below=0.0), samples={"holdfast": [0.01, -0.001, 0.02]})
    assert [(found.wanted, found.met) for found in judge(row, LABELS)] == [("never early", False)]


def test_one_lost_job_of_a_hundred_is_too_many():
    row = Row("x", Group.SPEED, "x", Unit.RECOVERED, Target(at_least=1.0))
    row.samples = {"holdfast": [*[1.0] * 99, 0.0], "torchrun": [0.0, 1.0, None]}
    assert [found.met for found in judge(row, LABELS)] == [False]
    assert report.cell(row, "holdfast") == "99 of 100"
    assert report.cell(row, "torchrun") == "1 of 3", "a job that never started did not recover"
    row.samples["holdfast"] = [*[1.0] * 99, None]
    assert [found.met for found in judge(row, LABELS)] == [False]


def test_what_was_not_measured_is_not_met():
    row = Row("x", Group.SPEED, "x", Unit.SECONDS, Target(at_most=1.0, never_below=0.0, share_of={"torchrun": 0.5}))
    assert [found.met for found in judge(row, LABELS)] == [None, None, None]


def test_our_failed_runs_show():
    row = restart_row(target=Target(at_most=1.0))
    row.samples["holdfast"] = [0.05, None, None]
    assert [found.met for found in judge(row, LABELS)] == [False], "a median of the lucky runs is no median"
    assert "1 of 3 runs passed" in report.cell(row, "holdfast")


# --- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0432, Unit.SECONDS, "0.043 s"),
        (0.0004, Unit.SECONDS, "0.0004 s"),
        (-0.0004, Unit.SECONDS, "-0.0004 s"),
        (1.352, Unit.SECONDS, "1.35 s"),
        (30.31, Unit.SECONDS, "30.3 s"),
        (0.0, Unit.SECONDS, "0.000 s"),
        (3.0, Unit.PROCESSES, "3"),
        (1_000_000, Unit.INPUTS, "1,000,000"),
        (218.4, Unit.MIB, "218 MiB"),
        (0.31, Unit.MICROSECONDS, "0.31 µs"),
    ],
)
def test_show(value: float, unit: Unit, text: str):
    assert show(value, unit) == text


def test_page_tells_medians_spread_ratios_and_verdicts():
    row = restart_row(target=Target(at_most=0.03, share_of={"torchrun": 1 / 3}), notes=["A note."])
    lines = report.markdown([Run(conditions(), [row])], LABELS).splitlines()
    (line,) = [line for line in lines if line.startswith("| restart ") and "A note" not in line and "torchrun:" in line]
    what, torchrun, reference, holdfast, ratio, target = [cell.strip() for cell in line.strip("|").split("|")]
    assert what == "restart"
    assert torchrun == "0.300 s (0.200 to 0.400; n 3)"
    assert reference == "2.50 s (2.00 to 3.00; 2 of 3 runs passed)"
    assert holdfast == "0.040 s (0.030 to 0.050; n 3)"
    assert ratio == "torchrun: 1/10 (1/10 to 1/4.0)<br>reference: 1/52 (1/75 to 1/40)"
    assert target == "≤ 0.030 s: **not met**<br>≤ 1/3 of torchrun: met"
    assert "- restart: A note." in lines
    assert any("A processor, 2 CPUs, 4 GiB, Linux 6.1, Python 3.11.7" in each for each in lines)


def test_page_says_what_makes_it_worth_less():
    state = conditions()
    assert "not quiet" not in report.markdown([Run(state, [])], LABELS)
    state.others_cores, state.quick, state.only, state.absent = 0.7, True, ["restart"], {"reference": "cannot start it"}
    text = report.markdown([Run(state, [])], LABELS)
    for part in ("not quiet", "quick run", "partial run: only restart", "not measured: reference: cannot start it"):
        assert part in text


def test_every_row_of_a_table_has_all_columns():
    rows = [restart_row(), Row("other", Group.SPEED, "other", Unit.MIB, samples={"holdfast": [1.0]})]
    table = [line for line in report.markdown([Run(conditions(), rows)], LABELS).splitlines() if line.startswith("|")]
    table = table[-4:]
    assert table[-2].startswith("| restart |")
    assert len({line.count("|") for line in table}) == 1


def test_raw_data_hold_every_sample(tmp_path: Path):
    row = restart_row(target=Target(at_most=0.03))
    text, data = report.write(tmp_path / "docs", [Run(conditions(), [row])], LABELS)
    assert text.read_text() == report.markdown([Run(conditions(), [row])], LABELS)
    told = json.loads(data.read_text())
    assert told["schema"] == runs.SCHEMA
    assert told["rows"][0]["samples"] == row.samples
    assert told["rows"][0]["targets"] == [{"wanted": "≤ 0.030 s", "met": False}]
    assert told["runs"][0]["commit"] == "abc1234"


def test_a_run_of_some_rows_joins_the_report(tmp_path: Path):
    first = restart_row(target=Target(at_most=0.03, share_of={"torchrun": 0.5}), notes=["A note."])
    other = Row("other", Group.COST, "other", Unit.MIB, samples={"holdfast": [1.0, None]}, picture="<svg/>")
    report.write(tmp_path, [Run(conditions(), [first, other])], LABELS)
    kept, labels = runs.read(tmp_path / "benchmarks.json")
    assert kept == [Run(conditions(), [first, other])]
    assert labels == LABELS

    later = conditions()
    later.date, later.commit, later.only = "2026-03-04 05:06 UTC", "def5678", ["restart"]
    again = restart_row(target=Target(at_most=0.1))
    both = runs.joined(kept, Run(later, [again]))
    text = report.markdown(both, labels)
    assert [[row.key for row in run.rows] for run in both] == [["other"], ["restart"]]
    assert "partial run" not in text, "the page as a whole is none"
    lines = text.splitlines()
    assert any(line.startswith("| other (A) |") for line in lines)
    assert any(line.startswith("| restart (B) |") and "≤ 0.100 s: met" in line for line in lines)
    assert [line[:12] for line in lines if line.startswith(("| A |", "| B |"))] == ["| A | 2026-0", "| B | 2026-0"]

    assert [len(run.rows) for run in runs.joined(both, Run(later, [again, other]))] == [2], "nothing is left of A"


def test_a_report_of_another_kind_is_not_joined(tmp_path: Path):
    file = tmp_path / "benchmarks.json"
    assert runs.read(file) == ([], {})
    for content, why in (('{"schema": "x", "subjects": {}, "runs": [], "rows": []}', "schema x"), ("{}", "missing")):
        file.write_text(content)
        with pytest.raises(ValueError, match=f"cannot keep the rows of .*{why}.*; run without --keep"):
            runs.read(file)


def test_events_are_read_as_workloads_write_them():
    event = Event.parse("done 3 1 812 123456789 beats=7 latest_s=0.5")
    assert (event.name, event.rank, event.cycle, event.pid, event.at_ns) == ("done", 3, 1, 812, 123456789)
    assert event.fields == {"beats": "7", "latest_s": "0.5"}


def test_supervisors_times_are_brought_to_the_monotonic_clock():
    line = '{"at": "1970-01-01T00:00:10.000005Z", "kind": "hang_detected", "rank": 1, "cycle": 0, "reason": ""}'
    assert Told.parse(line, boot_ns=4_000_000_000) == Told("hang_detected", 1, 0, 6_000_005_000)


def test_no_headline_rests_on_a_single_sample():
    rows = [restart_row(), restart_row()]
    rows[0].key, rows[1].key = "restart_torch", "memory"
    rows[1].samples = {"holdfast": [1.0], "reference": [2.0, 3.0]}
    text = headlines(rows)
    assert HEADLINES["restart_torch"] in text
    assert HEADLINES["memory"] not in text


def test_each_headline_is_a_row_and_each_target_that_is_not_met_says_why():
    kept, labels = runs.read(DOCS / "benchmarks.json")
    rows = [row for run in kept for row in run.rows]
    assert not set(HEADLINES) - {row.key for row in rows if len(row.good("holdfast")) > 1}
    missed = {row.key for row in rows if any(found.met is False for found in judge(row, labels))}
    assert missed == set(SHORTFALLS)
    assert (DOCS / "benchmarks.md").read_text() == report.markdown(kept, labels)
