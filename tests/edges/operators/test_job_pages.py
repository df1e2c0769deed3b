"""Do pages show every job once, newest first, while new ones come?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisor.core.facts import JobState
from supervisor.edges.operators.control_encoding import job_to_wire
from supervisor.edges.operators.job_pages import LIST_PAGE_MAX, PAGE_BYTES_MAX, merge, page_of
from supervisor.errors import InvalidRequestError
from supervisor.ports.reports import JobReport
from tests.edges.operators.fake_job_service import running


@given(st.lists(st.integers(1, 1_000), max_size=60), st.integers(1, 7))
def test_pages_cover_all_jobs_once(times: list[int], size: int) -> None:
    jobs = [running(f"job-{index}", submitted_at_ns=time) for index, time in enumerate(times)]
    live, ended = jobs[::2], [replace(each, state=JobState.SUCCEEDED) for each in newest_first(jobs[1::2])]
    newest = running("newer", submitted_at_ns=2_000)
    seen: list[str] = []
    token = ""
    while True:
        page, token = page_of(merge(live, ended), job_to_wire, size=size, token=token)
        seen += [job.job_id for job in page]
        if not token:
            break
        live = [*jobs[::2], newest]
    assert seen == [job.job_id for job in newest_first(jobs)]


def newest_first(jobs: list[JobReport]) -> list[JobReport]:
    return sorted(jobs, key=lambda job: job.list_key, reverse=True)


def test_a_page_takes_no_more_jobs_than_it_has_and_the_next() -> None:
    taken: list[int] = []

    def recorded() -> Iterator[JobReport]:
        for number in range(100, 0, -1):
            taken.append(number)
            yield replace(running(f"job-{number}", submitted_at_ns=number), state=JobState.SUCCEEDED)

    page, _ = page_of(merge([running("live", submitted_at_ns=98)], recorded()), job_to_wire, size=4, token="")
    assert [job.job_id for job in page] == ["job-100", "job-99", "live", "job-98"]
    assert taken[-1] >= 96


def test_the_live_answer_wins_and_strangers_are_left_out() -> None:
    mine = running("mine", submitted_at_ns=5)
    stale = replace(mine, state=JobState.FAILED)
    ended = replace(running("ended", submitted_at_ns=7), state=JobState.SUCCEEDED)
    of_another_supervisor = running("stranger", submitted_at_ns=9)
    assert list(merge([mine], [of_another_supervisor, ended, stale])) == [ended, mine]


def test_a_page_is_bounded_and_a_bad_token_refused() -> None:
    jobs = [running(f"job-{number}", submitted_at_ns=number) for number in range(LIST_PAGE_MAX + 5, 0, -1)]
    assert len(page_of(jobs, job_to_wire, size=10**6, token="")[0]) == LIST_PAGE_MAX
    for token in ("?", "bm8=", "é"):
        with pytest.raises(InvalidRequestError, match="page_token"):
            page_of(jobs, job_to_wire, size=1, token=token)


def test_a_page_has_a_bounded_size_unless_one_job_alone_is_longer() -> None:
    jobs = [
        replace(running(f"job-{n}", submitted_at_ns=100 - n), log_dir="x" * (PAGE_BYTES_MAX // 4)) for n in range(9)
    ]
    jobs[4] = replace(jobs[4], log_dir="x" * 2 * PAGE_BYTES_MAX)
    pages: list[list[str]] = []
    token = ""
    while True:
        page, token = page_of(jobs, job_to_wire, size=0, token=token)
        assert len(page) == 1 or sum(job.ByteSize() for job in page) <= PAGE_BYTES_MAX
        pages.append([job.job_id for job in page])
        if not token:
            break
    assert pages == [["job-0", "job-1", "job-2"], ["job-3"], ["job-4"], ["job-5", "job-6", "job-7"], ["job-8"]]
