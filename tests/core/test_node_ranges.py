"""How are the names of nodes and their ranks written in one word?"""

from __future__ import annotations

import pytest

from supervisor.core.node_ranges import node_ranges, rank_ranges, sorted_names


@pytest.mark.parametrize(
    ("names", "word"),
    [
        ((), ""),
        (("node7",), "node7"),
        (("node001", "node003", "node002", "node007"), "node[001-003,007]"),
        (("n9", "n10", "n11"), "n9,n[10-11]"),
        (("a1", "b1", "a2", "login"), "a[1-2],b1,login"),
        (("gpu1.site", "gpu2.site", "gpu2.other"), "gpu2.other,gpu[1-2].site"),
        (("10.0.0.1", "10.0.0.2"), "10.0.0.[1-2]"),
        (("n1", "n1"), "n1"),
        (("host", "host"), "host"),
        (("", "x"), ",x"),
    ],
)
def test_names_that_differ_in_a_number_are_one_word(names: tuple[str, ...], word: str) -> None:
    assert node_ranges(names) == word


def test_ranks_stand_in_the_order_of_the_nodes() -> None:
    assert sorted_names(("n10", "n9")) == ["n9", "n10"]
    assert rank_ranges([range(8), range(8, 16)]) == "0-7,8-15"
    assert rank_ranges([[3], [], [4, 5]]) == "3,4-5"
