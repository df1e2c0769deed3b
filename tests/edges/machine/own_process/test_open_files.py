"""Is the limit of descriptors raised while needed, and then restored?"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from supervisor.edges.machine.own_process.open_files import RaisedLimit

FILES = resource.RLIMIT_NOFILE


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(FILES)
    yield before
    resource.setrlimit(FILES, before)


def test_raised_to_what_the_kernel_lets_and_put_back(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(FILES, (200, hard))
    raised = RaisedLimit()
    assert resource.getrlimit(FILES) == (hard, hard)
    assert raised.before_and_now == (200, hard)
    raised.restore()
    assert resource.getrlimit(FILES) == (200, hard)


def test_nothing_to_raise_is_nothing_to_put_back(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(FILES, (hard, hard))
    raised = RaisedLimit()
    assert raised.before_and_now == ()
    resource.setrlimit(FILES, (200, hard))
    raised.restore()
    assert resource.getrlimit(FILES) == (200, hard)
