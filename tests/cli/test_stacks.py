"""Is the text of `holdfast stacks` readable for any number of ranks?"""

from __future__ import annotations

from supervisor.cli.stacks import stacks_text
from supervisor.core.facts import Evidence, StackGroup


def test_the_ranks_of_a_group_are_ranges_as_in_the_other_commands() -> None:
    waiting = StackGroup((*range(1, 7), *range(8, 2048)), "train (t.py:9)\nall_reduce (c10d.py:12)")
    told = stacks_text(
        Evidence((StackGroup((0,), "load (data.py:88)"), StackGroup((7, 9), "x"), waiting), source="py-spy")
    )
    assert told.startswith("rank 0:\n  load (data.py:88)\n\nranks 7, 9:\n  x\n\nranks 1-6, 8-2047:\n  train (t.py:9)\n")
