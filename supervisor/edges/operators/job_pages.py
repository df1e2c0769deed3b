"""Which jobs are on which page of a list, newest first, while jobs come and go?"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
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
_list_key: Callable[[JobReport], tuple[int, str]] = attrgetter("list_key")


def merge(live: Sequence[JobReport], recorded: Iterable[JobReport]) -> Iterator[JobReport]:
    """Yields this supervisor's jobs as they are now and the journal's ended ones, newest first.

    `recorded` has that order, and is read only as far as jobs are taken. Jobs that the journal shows as not ended
    belong to another supervisor, which knows more about them.
    """
    known = {report.list_key for report in live}
    ended = (report for report in recorded if report.state.has_ended and report.list_key not in known)
    newest_first = sorted(live, key=_list_key, reverse=True)
    return heapq.merge(newest_first, ended, key=_list_key, reverse=True)


def page_of(
    reports: Iterable[JobReport], encode: Callable[[JobReport], wire.Job], *, size: int, token: str
) -> tuple[list[wire.Job], str]:
    """Returns one page and the next page's token, "" after the last. New jobs cause no repeats or gaps.

    A page has PAGE_BYTES_MAX at most: a job that is longer by itself is on a page of its own.
    """
    below = key_of(token)
    left = (report for report in reports if below is None or report.list_key < below)
    page, last = first_of(left, encode, size=min(size or LIST_PAGE_DEFAULT, LIST_PAGE_MAX))
    return page, "" if last is None else token_of(f"{last.submitted_at_ns}:{last.job_id}")


def first_of(
    reports: Iterable[Report], encode: Callable[[Report], Encoded], *, size: int
) -> tuple[list[Encoded], Report | None]:
    """Returns as many of the first reports as fit into PAGE_BYTES_MAX, `size` at most, at least one if there is one.

    The second value is the last of them, or None if there are no more.
    """
    page: list[Encoded] = []
    left, last = PAGE_BYTES_MAX, None
    for report in reports:
        if len(page) == size:
            return page, last
        encoded = encode(report)
        left -= encoded.ByteSize()
        if page and left < 0:
            return page, last
        page.append(encoded)
        last = report
    return page, None


def key_of(token: str) -> tuple[int, str] | None:
    """Returns the `list_key` of the last job on the page before; None for the first page."""
    if not token:
        return None
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
