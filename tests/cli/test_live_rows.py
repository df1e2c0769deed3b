"""Do the live view's rows show first what people look for: silent and unusual ranks, matches of the typed words?"""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.cli.top_view import rows
from supervisor.cli.top_view.job_polling import Look
from supervisor.cli.top_view.screen_contents import AllJobs, RanksOfJob
from supervisor.core.facts import JobState
from supervisor.local_time import local_time
from supervisor.ports.reports import JobReport, RankReport, RecordedEvent, SectionReport
from tests.edges.operators.fake_job_service import running

NOW_NS = 10**12


def _rank(age_s: float | None, limit_s: float | None, *sections: SectionReport, state: str = "running") -> RankReport:
    return RankReport(0, 0, "n0", state, heartbeat_age_s=age_s, heartbeat_limit_s=limit_s, sections=sections)


@pytest.mark.parametrize(
    ("rank", "share", "cell"),
    [
        (_rank(3.0, 6.0), 0.5, "3.0s/6.0s"),
        (_rank(3.0, None), 0.0, "3.0s"),
        (_rank(None, 6.0), 0.0, "none/6.0s"),
        (_rank(None, None), 0.0, "-"),
        (_rank(1.0, 10.0, SectionReport("step", 9.0, 10.0)), 0.9, "1.0s/10s"),
        (_rank(1.0, 10.0, SectionReport("step", 9.0, None)), 0.1, "1.0s/10s"),
        (RankReport(0, 0, "n0", "running", main_thread_age_s=3.0, main_thread_limit_s=6.0), 0.5, "3.0s/6.0s"),
    ],
)
def test_silence_is_told_as_a_share_of_its_limit(rank: RankReport, share: float, cell: str) -> None:
    assert rows.silent_share(rank) == pytest.approx(share)
    assert rows.silence(rank) == cell


@pytest.mark.parametrize(
    ("heartbeat", "main_thread", "shown", "cell"),
    [
        ((55.0, 2_700.0), (55.0, 60.0), (55.0, 60.0), "55s/1m00s"),
        ((40.0, 45.0), (1.0, 60.0), (40.0, 45.0), "40s/45s"),
        ((3.0, None), (0.5, 60.0), (0.5, 60.0), "0.5s/1m00s"),
        ((3.0, 45.0), (0.5, None), (3.0, 45.0), "3.0s/45s"),  # in a wrapped call
        ((3.0, None), (0.5, None), (3.0, None), "3.0s"),
    ],
)
def test_of_heartbeats_and_the_main_thread_the_one_nearer_to_its_limit_is_shown(
    heartbeat: tuple[float, float | None],
    main_thread: tuple[float, float | None],
    shown: tuple[float, float | None],
    cell: str,
) -> None:
    main_thread_age_s, main_thread_limit_s = main_thread
    rank = replace(_rank(*heartbeat), main_thread_age_s=main_thread_age_s, main_thread_limit_s=main_thread_limit_s)
    assert rows.age_and_limit(rank) == shown
    assert rows.silence(rank) == cell


def test_a_job_is_urgent_once_a_rank_is_half_way_to_its_limit_or_odd() -> None:
    job = running()
    assert not rows.job_row(FoundJob(job, None), NOW_NS).urgent
    late = replace(job, ranks=(*job.ranks[:3], replace(job.ranks[3], heartbeat_age_s=30.0)))
    assert rows.job_row(FoundJob(late, None), NOW_NS).urgent
    assert rows.job_row(FoundJob(late, None), NOW_NS).cells[5] == "30s/45s"
    hung = replace(job, ranks=(replace(job.ranks[0], state="hung"), *job.ranks[1:]))
    assert rows.job_row(FoundJob(hung, None), NOW_NS).urgent
    assert not rows.job_row(FoundJob(replace(hung, state=JobState.FAILED, ended_at_ns=NOW_NS), None), NOW_NS).urgent


def test_a_ranks_end_is_told_with_its_code_or_signal() -> None:
    ended = replace(_rank(None, None, state="exited"), exit_code=3)
    killed = replace(_rank(None, None, state="failed"), exit_signal=9)
    assert rows.rank_row(ended, NOW_NS).cells[1] == "exited (3)"
    assert rows.rank_row(killed, NOW_NS).cells[1] == "failed (signal 9)"


def test_a_hostile_name_cannot_steer_the_terminal() -> None:
    hostile = _rank(1.0, None, SectionReport("\x1b[2Jstep", 1.0, None))
    event = RecordedEvent("j", 1, NOW_NS, "worker_failed", "said \x1b]0;owned\x07", rank=1)
    told = [*rows.rank_row(hostile, NOW_NS).cells, rows.event_line(event, with_job=True)]
    told += rows.job_row(FoundJob(replace(running(), reason="\x1b[31mred"), None), NOW_NS).cells
    assert not any("\x1b" in each or "\x07" in each for each in told)


@pytest.mark.parametrize(
    ("text", "keys"), [("", ["a", "b"]), ("RUN", ["a"]), ("run x", []), ("n1 run", ["a"]), ("  n1 ", ["a", "b"])]
)
def test_rows_fit_when_each_word_stands_in_them(text: str, keys: list[str]) -> None:
    all_rows = [rows.Row("a", ("a", "running", "n1")), rows.Row("b", ("b", "hung", "n1"))]
    assert [row.key for row in rows.fitting(all_rows, text)] == keys


def _look(*reports: JobReport) -> Look:
    return Look(NOW_NS, tuple(FoundJob(report, None) for report in reports), 1)


def test_jobs_are_sorted_as_asked() -> None:
    calm, late = running("calm", submitted_at_ns=2), running("late", submitted_at_ns=1)
    late = replace(late, restarts_used=3, ranks=(replace(late.ranks[0], heartbeat_age_s=40.0),))
    jobs, look = AllJobs(), _look(calm, late)
    told = {name: [row.key for row in jobs.rows(look, place)] for place, name in enumerate(jobs.orders)}
    assert told["newest"] == ["calm", "late"]
    assert told["silence"] == told["restarts"] == ["late", "calm"]
    assert told["name"] == ["calm", "late"]
    assert "2 jobs, 5/5 ranks, 1 supervisor" in jobs.title(look)


def test_an_earlier_run_of_a_job_that_runs_again_is_told_apart_in_any_order() -> None:
    """The one that failed in the night is what people look for in the morning, whatever they sort by."""
    live = FoundJob(running("nightly", submitted_at_ns=10), Answering(cast("Any", None), is_private=False, uid=0), 0)
    failed = replace(running("nightly", submitted_at_ns=5), state=JobState.FAILED, ended_at_ns=9, restarts_used=7,
                     reason="rank 3 failed")  # fmt: skip
    older = replace(failed, submitted_at_ns=1, ended_at_ns=4)
    told = (FoundJob(failed, None, 0), live, FoundJob(older, None, 0))
    look = Look(NOW_NS, told, 1, ended=frozenset({told[0].run}))
    earlier = f"{live.name} (until {local_time(9)[:16]})"
    for order in range(len(AllJobs.orders)):
        found = {row.cells[0]: row for row in AllJobs().rows(look, order)}
        assert set(found) == {live.name, earlier}
        assert (found[live.name].cells[1], found[live.name].is_earlier) == ("running", False)
        assert (found[earlier].cells[1], found[earlier].cells[-1]) == ("failed", "rank 3 failed")
        assert found[earlier].is_earlier
    both = Look(NOW_NS, told, 1, ended=frozenset({told[0].run, told[2].run}))
    shown = AllJobs().rows(both, 0)
    assert sorted(row.cells[0] for row in shown) == [live.name, earlier, earlier]
    assert len({row.key for row in shown}) == 3, "the table takes each key once"


def test_the_events_of_an_earlier_run_are_not_shown_with_those_of_the_live_one() -> None:
    live = FoundJob(running("nightly", submitted_at_ns=5), Answering(cast("Any", None), is_private=False, uid=0), 0)
    earlier = FoundJob(replace(running("nightly", submitted_at_ns=10), state=JobState.FAILED, ended_at_ns=12), None, 0)
    of_each = [RecordedEvent(live.name, 1, at_ns, "worker_failed", "because") for at_ns in (11, 10**12)]
    events = tuple(zip((earlier.run, live.run), of_each, strict=True))
    ranks, look = RanksOfJob(live.name), Look(NOW_NS, (earlier, live), 1, events=events)
    assert "running" in ranks.title(look), "though the clock was set back meanwhile"
    assert ranks.events(look) == [rows.event_line(of_each[1], with_job=False)]
    assert AllJobs().events(look) == [rows.event_line(each, with_job=True) for each in of_each]


def test_ranks_are_sorted_as_asked_and_the_odd_ones_come_first() -> None:
    job = running(ranks=3)
    job = replace(job, ranks=(job.ranks[0], replace(job.ranks[1], heartbeat_age_s=44.0, node="a"),
                              replace(job.ranks[2], state="hung")))  # fmt: skip
    ranks, look = RanksOfJob("train-7f3a"), _look(job)
    told = {name: [row.key for row in ranks.rows(look, place)] for place, name in enumerate(ranks.orders)}
    assert told == {"rank": ["0", "1", "2"], "silence": ["1", "0", "2"], "state": ["2", "0", "1"],
                    "node": ["1", "0", "2"]}  # fmt: skip


def test_a_job_that_nobody_knows_any_more_leaves_an_empty_screen_that_says_so() -> None:
    ranks = RanksOfJob("gone")
    assert (ranks.rows(_look(running()), 0), ranks.events(_look(running()))) == ([], [])
    assert "no longer known" in ranks.title(_look(running()))
