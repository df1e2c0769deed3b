"""Which jobs are on which page of a list, newest first, while jobs come and go?"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from holdfast_wire.v1 import control_pb2 as wire

from supervisor.errors import InvalidRequestError
from supervisor.ports.reports import JobReport

LIST_PAGE_MAX = 1_000
LIST_PAGE_DEFAULT = 100
PAGE_BYTES_MAX = 1 << 20

Report = TypeVar("Report")
Encoded = TypeVar("Encoded", bound=Message)


def merge(live: Sequence[JobReport], recorded: Iterable[JobReport]) -> list[JobReport]:
    """Returns this supervisor's jobs as they are now and the journal's ended ones, newest first.

    Jobs that the journal shows as not ended belong to another supervisor, which knows more about them.
    """
    known = {_key(report) for report in live}
    ended = [report for report in recorded if report.state.has_ended and _key(report) not in known]
    return sorted([*live, *ended], key=_key, reverse=True)


def page_of(
    reports: Sequence[JobReport], encode: Callable[[JobReport], wire.Job], *, size: int, token: str
) -> tuple[list[wire.Job], str]:
    """Returns one page and the next page's token, "" after the last. New jobs cause no repeats or gaps.

    A page has PAGE_BYTES_MAX at most: a job that is longer by itself is on a page of its own.
    """
    size = min(size or LIST_PAGE_DEFAULT, LIST_PAGE_MAX)
    if token:
        after = _read_page_token(token)
        reports = [report for report in reports if _key(report) < after]
    page = first_of(reports[:size], encode)
    return page, _token(reports[len(page) - 1]) if len(reports) > len(page) else ""


def first_of(reports: Sequence[Report], encode: Callable[[Report], Encoded]) -> list[Encoded]:
    """Returns as many of the first reports as fit into PAGE_BYTES_MAX, and at least one if there is one."""
    page: list[Encoded] = []
    left = PAGE_BYTES_MAX
    for report in reports:
        encoded = encode(report)
        left -= encoded.ByteSize()
        if page and left < 0:
            break
        page.append(encoded)
    return page


def _key(report: JobReport) -> tuple[int, str]:
    return report.submitted_at_ns, report.job_id


def _token(report: JobReport) -> str:
    return token_of(f"{report.submitted_at_ns}:{report.job_id}")


def _read_page_token(token: str) -> tuple[int, str]:
    try:
        submitted, _, job_id = text_of(token).partition(":")
        return int(submitted), job_id
    except ValueError:
        raise wrong_token("jobs") from None


# --- tokens, also those of the pages of nodes ----------------------------------------------------------------------


def token_of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def text_of(token: str) -> str:
    """Raises ValueError for a token that is none."""
    return base64.urlsafe_b64decode(token.encode("ascii")).decode()


def wrong_token(listed: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"cannot list {listed}: page_token is not one that an earlier page gave; begin without one"
    )
