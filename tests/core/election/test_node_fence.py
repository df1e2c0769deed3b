"""The workers of a node end in time if nobody vouches for it, and the spawner hears of its limit early enough."""

# pyright: reportUnusedExpression=false

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.election import node_fence
from supervisor.core.election.node_fence import (
    MOVED_BY_S,
    MOVED_EVERY_S,
    DeadlineReached,
    EndWorkers,
    MoveFence,
    NobodyElse,
    State,
)
from supervisor.core.fence_times import FENCE_S
from tests.core.playbook import Playbook


def fence(known_at_s: float | None = None) -> Playbook[State]:
    return Playbook(node_fence.step, node_fence.initial_state("n0", now_s=0.0, known_at_s=known_at_s))


def test_the_spawner_is_told_at_once_and_then_regularly() -> None:
    play = fence()
    assert node_fence.next_deadline_s(play.state) == 0.0
    play >> DeadlineReached() << MoveFence(FENCE_S)
    assert node_fence.next_deadline_s(play.state) == MOVED_EVERY_S
    play.at(MOVED_EVERY_S / 2) >> NobodyElse(MOVED_EVERY_S / 2) << ()
    play.at(MOVED_EVERY_S) >> DeadlineReached() << MoveFence(MOVED_EVERY_S / 2 + FENCE_S)


def test_a_fence_that_has_moved_far_is_told_before_the_next_regular_word() -> None:
    play = fence(known_at_s=-FENCE_S / 2)
    play >> DeadlineReached()
    play >> NobodyElse(-FENCE_S / 2 + MOVED_BY_S / 2) << ()
    play >> NobodyElse(0.0) << MoveFence(FENCE_S)


def test_the_workers_end_when_the_fence_is_reached_and_never_before() -> None:
    play = fence()
    play >> DeadlineReached()
    play.at(FENCE_S - 0.001) >> DeadlineReached()
    play.lacks(EndWorkers)
    assert node_fence.next_deadline_s(play.state) <= FENCE_S
    play.at(FENCE_S) >> DeadlineReached()
    (ends,) = play.of(EndWorkers)
    assert "node n0 ends its workers" in ends.order.reason
    play.has(MoveFence(2 * FENCE_S))


def test_an_older_word_never_moves_it_back() -> None:
    play = fence()
    play >> DeadlineReached() >> NobodyElse(-3.0) << ()
    assert play.state.until_s == FENCE_S


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=30))
def test_whatever_is_heard_workers_never_run_beyond_the_fence_and_never_end_before_it(
    heard: list[tuple[float, float]],
) -> None:
    """Each pair: how long after the one before a word comes, and how old it is then. Deadlines are kept."""
    state, now_s = node_fence.initial_state("n0", now_s=0.0), 0.0
    for after_s, age_s in heard:
        due_s = now_s + after_s
        while (deadline_s := node_fence.next_deadline_s(state)) <= due_s:
            now_s = max(now_s, deadline_s)
            state, actions = node_fence.step(state, DeadlineReached(), now_s=now_s)
            ends = any(isinstance(each, EndWorkers) for each in actions)
            assert ends == (now_s >= state.until_s)
            assert now_s - state.until_s < FENCE_S or ends, "said again and again"
            assert node_fence.next_deadline_s(state) > now_s
        now_s = due_s
        state, _ = node_fence.step(state, NobodyElse(now_s - age_s), now_s=now_s)
        assert state.told_s <= max(state.until_s, now_s + FENCE_S)
