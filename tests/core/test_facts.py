"""Are the shared sentences and states right?"""

import pytest

from supervisor.core.facts import Evidence, JobState, StackGroup, WorkerExit


@pytest.mark.parametrize(
    ("code", "signal", "more", "sentence"),
    [
        (1, None, {}, "rank 3 (pid 77) failed with exit code 1"),
        (1, None, {"error": "ValueError: x"}, "rank 3 (pid 77) failed with exit code 1: ValueError: x"),
        (0, None, {}, "rank 3 (pid 77) exited with code 0"),
        (0, None, {"error": "late", "unattended": True}, "rank 3 (pid 77) exited with code 0: late"),
        (None, 9, {"out_of_memory": True}, "rank 3 (pid 77) was killed by SIGKILL because memory ran out"),
        (None, 11, {"core_dumped": True}, "rank 3 (pid 77) was killed by SIGSEGV (core dumped)"),
        (None, 45, {}, "rank 3 (pid 77) was killed by signal 45"),
    ],
)
def test_an_exit_says_who_and_why(code: int | None, signal: int | None, more: dict[str, object], sentence: str) -> None:
    known = WorkerExit(1, 3, 77, code, signal, 0.0, **more)  # pyright: ignore[reportArgumentType]
    assert known.describe() == sentence
    assert known.succeeded is (code == 0 and not more)


def test_stacks_in_one_sentence() -> None:
    evidence = Evidence((StackGroup((2,), "main\n  load (data.py:8)\n"), StackGroup((0, 1), "reduce (c10d.py:12)")))
    assert evidence.summary() == "rank 2 stands in load (data.py:8); ranks 0, 1 stand in reduce (c10d.py:12)"
    assert Evidence((StackGroup((0,), ""),)).summary() == "rank 0 stands in an unknown place"
    assert Evidence().summary() == ""


def test_only_verdicts_have_ended() -> None:
    ended = {state for state in JobState if state.has_ended}
    assert ended == {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}
