"""Does a job that ends stay on the screen of `holdfast top`, also while another supervisor does not answer?"""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from supervisor.cli.supervisor_discovery import Answering, FoundJob
from supervisor.cli.top_view.ended_jobs import EndedJobs
from supervisor.core.facts import JobState
from tests.edges.operators.fake_job_service import running


def _live(name: str) -> FoundJob:
    return FoundJob(running(name), Answering(cast("Any", None), is_private=True, uid=0), 0)


def _ended(job: FoundJob) -> FoundJob:
    return FoundJob(replace(job.report, state=JobState.SUCCEEDED, ended_at_ns=2_000, ranks=()), None, job.uid)


def test_a_job_that_ends_while_another_supervisor_is_silent_is_noticed() -> None:
    a, b = _live("a"), _live("b")
    ended = EndedJobs()
    assert ended.note([a, b], list, is_complete=True) == []
    assert ended.note([a], lambda: [a, _ended(b)], is_complete=False) == [_ended(b)]
    assert ended.note([a], _unwanted, is_complete=False) == []
    assert ended.beside([a]) == [_ended(b)]


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_job_of_the_silent_supervisor_is_noticed_when_it_has_ended(is_complete: bool) -> None:
    a, b = _live("a"), _live("b")
    ended = EndedJobs()
    ended.note([a, b], list, is_complete=True)
    assert ended.note([a], lambda: [a, FoundJob(b.report, None, b.uid)], is_complete=False) == []  # as in the journal
    assert ended.beside([a]) == []
    assert ended.note([a], lambda: [a, _ended(b)], is_complete=is_complete) == [_ended(b)]


def test_an_ended_job_stays_when_its_name_runs_again() -> None:
    first = _live("nightly")
    second = FoundJob(replace(first.report, submitted_at_ns=first.report.submitted_at_ns + 1), first.supervisor, 0)
    third = FoundJob(replace(first.report, submitted_at_ns=first.report.submitted_at_ns + 2), first.supervisor, 0)
    ended = EndedJobs()
    ended.note([first], list, is_complete=True)
    ended.note([second], lambda: [second, _ended(first)], is_complete=True)
    assert ended.beside([second]) == [_ended(first)]
    ended.note([third], lambda: [third, _ended(second), _ended(first)], is_complete=True)
    assert ended.beside([third]) == [_ended(second), _ended(first)]


def _unwanted() -> list[FoundJob]:
    raise AssertionError("no job is missing")
