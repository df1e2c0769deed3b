"""Does a step that takes too long end, with everything that it has started?"""

from __future__ import annotations

import pytest

from tests.soak.packages import run_bounded


def test_the_end_of_a_step_and_what_it_printed_are_known() -> None:
    assert run_bounded(["sh", "-c", "echo begun; echo wrong >&2; exit 3"], 600.0) == (3, "begun\nwrong\n")


@pytest.mark.timeout(60)
def test_a_step_that_takes_too_long_ends_although_its_children_hold_its_output() -> None:
    code, text = run_bounded(["sh", "-c", "sleep 600 & sleep 600"], 0.1)
    assert code == 124
    assert text == "\nnot done within 0.1 s"
