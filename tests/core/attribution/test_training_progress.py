"""Is a rank that continues training distinguished from one that only continues printing?"""

from __future__ import annotations

import pytest

from supervisor.core.attribution.training_progress import LINES_ALIKE, TAIL_LINES_MAX, Progress


def fed(*lines: str) -> Progress:
    progress = Progress()
    for number, line in enumerate(lines, 1):
        progress.take(0, line, number)
    return progress


@pytest.mark.parametrize(
    "shape", ["step {} loss 2.{}", " 3{}%|███{}      | 14/40", "[2026-01-01 00:00:0{}] iteration {}/ 900 |"]
)
def test_lines_that_differ_in_numbers_are_progress(shape: str) -> None:
    lines = [shape.format(each, each) for each in range(LINES_ALIKE)]
    assert fed(*lines).goes_on(0, 0)
    assert not fed(*lines[1:]).goes_on(0, 0)
    assert not fed(*lines).goes_on(0, 1)  # only later lines count


@pytest.mark.parametrize(
    "line",
    [
        "frame #{}: c10::Error + 0x5{} (0x7f{} in libc10.so)",
        "[W socket.cpp:{}] [c10d] failed to connect, attempt {}",
        '  File "/a/b.py", line {} in wait',
        "waiting for rank 3, {} s",
        "[launch.py] Killing subprocess {}",
    ],
)
def test_faults_that_repeat_are_none(line: str) -> None:
    assert not fed(*(line.replace("{}", str(each)) for each in range(9))).goes_on(0, 0)


def test_the_same_line_again_is_none() -> None:
    assert not fed(*["step 3"] * 9).goes_on(0, 0)


def test_one_rank_does_not_go_on_for_another_but_someone_does() -> None:
    progress = fed("step 1", "step 2", "step 3")
    assert not progress.goes_on(1, 0)
    assert progress.anyone_goes_on(0)
    assert not progress.anyone_goes_on(3)


def test_only_the_last_lines_are_kept() -> None:
    talk = ["ok"] * TAIL_LINES_MAX
    assert not fed("step 1", "step 2", "step 3", *talk).goes_on(0, 0)
