"""One rank is, several are; few ranks are named, many are counted or given as ranges."""

from __future__ import annotations

from supervisor.core.hangs.hang_text import counted, listed_clauses, said_of, subject


def test_ranks_are_named_as_a_person_would() -> None:
    assert subject((1,)) == "rank 1"
    assert subject((0, 2)) == "ranks 0 and 2"
    assert subject((0, 1, 2)) == "ranks 0, 1 and 2"
    assert subject((0, 1, 2, 3, 7)) == "ranks 0-3 and 7"
    assert counted((0, 1)) == "ranks 0 and 1"
    assert counted(tuple(range(7))) == "7 ranks"


def test_verbs_agree_and_other_braces_are_text() -> None:
    assert said_of((1,), "{are} stopped (SIGSTOP)") == "rank 1 is stopped (SIGSTOP)"
    assert said_of((1, 3), "{are} in f{x} (a.py:1)") == "ranks 1 and 3 are in f{x} (a.py:1)"
    assert said_of(tuple(range(8)), "{wait} in barrier", by_count=True) == "8 ranks wait in barrier"


def test_more_than_a_few_clauses_are_counted() -> None:
    assert listed_clauses(["a", "b"], "; ") == "a; b"
    assert listed_clauses(list("abcde"), "; ") == "a; b; c; and 2 more cases"
