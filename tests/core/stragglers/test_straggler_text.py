"""Do people read who is slow, where, by how much, and against whom?"""

from __future__ import annotations

from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.core.stragglers.straggler_text import found_sentence, gone_sentence, well_again, written


def test_one_rank():
    assert found_sentence("forward", "n1", (3,), 0.3, 0.2, 8) == (
        "rank 3 on node n1 is slow in section 'forward': 300 ms each time, 1.50 times the median of 8 ranks (200 ms)"
    )


def test_a_whole_node():
    assert found_sentence("forward", "n1", (4, 5, 6, 7), 3.0, 2.0, 8) == (
        "node n1 (ranks 4-7) is slow in section 'forward': 3 s each time, 1.50 times the median of 8 ranks (2 s)"
    )


def test_one_of_two_ranks():
    assert found_sentence("step", "n0", (1,), 0.4, 0.2, 2).endswith("2.00 times the other rank (200 ms)")


def test_the_end():
    each = Straggler("step", "n0", (1,), False, 1.5, 0.3, 0.2, 8, "")
    assert gone_sentence(each, well_again(1.01, 8)) == (
        "rank 1 on node n0 is no longer slow in section 'step': 1.01 times the median of 8 ranks"
    )


def test_ranks_are_written_short():
    assert [written(each) for each in ((), (3,), (0, 1, 2, 5, 7, 8))] == ["", "3", "0-2,5,7-8"]
