"""Due items are taken at the next check, once; the others cost nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.peers.transport.wheel import Wheel

NOTCH_S = 0.5


@given(st.lists(st.one_of(st.floats(0, 20), st.just("look")), max_size=60))
def test_each_is_taken_once_never_early_and_at_most_a_notch_late(script: list[float | str]):
    wheel: Wheel[tuple[float, int]] = Wheel(NOTCH_S)
    looks = 0
    waiting: list[tuple[float, int]] = []  # when it is due, and how many checks came before
    for word in script:
        if isinstance(word, float):
            wheel.put((word, looks), word)
            waiting.append((word, looks))
            continue
        looks += 1
        now_s = looks * NOTCH_S
        for item in wheel.take(now_s):
            assert item[0] <= now_s
            waiting.remove(item)
        assert all(due_s > now_s - NOTCH_S or put_after == looks for due_s, put_after in waiting)
    assert sorted(wheel.take(100.0)) == sorted(waiting)


def test_what_is_put_while_it_is_due_waits_for_the_next_look():
    wheel: Wheel[str] = Wheel(NOTCH_S)
    wheel.put("a", 10.0)
    assert wheel.take(10.0) == []
    assert wheel.take(10.5) == ["a"]
    wheel.put("a", 10.5)
    assert wheel.take(10.5) == []
    wheel.put("late", 3.0)
    assert wheel.take(11.0) == ["a", "late"]
