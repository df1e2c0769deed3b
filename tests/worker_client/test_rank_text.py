"""Are ranks named as people read them?"""

from __future__ import annotations

import pytest

from worker_client import rank_text


@pytest.mark.parametrize(
    ("ranks", "total", "text"),
    [([3], 1, "rank 3"), ([3, 7], 2, "ranks 3, 7"), ([3, 7], 43, "ranks 3, 7 and 41 more")],
)
def test_some_are_named_and_the_others_counted(ranks: list[int], total: int, text: str) -> None:
    assert rank_text.named(ranks, total) == text
