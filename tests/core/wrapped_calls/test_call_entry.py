"""Which ranks count as present when they come back to a coordinator that knows nothing of their call?"""

from __future__ import annotations

import pytest

from supervisor.core.wrapped_calls import call_entry, call_state
from supervisor.core.wrapped_calls.call_actions import Say, Tell
from supervisor.core.wrapped_calls.call_messages import (
    CallEnter,
    CallRefused,
    CallSettings,
    FaultsReported,
    Stage,
    Told,
)
from supervisor.core.wrapped_calls.call_state import HELD_WORDS_MAX, Over, Rebuilding, Running, State

R, E, W = Stage.RUNNING, Stage.ENTERING, Stage.RESTARTING


def coming(*stands: tuple[Stage, int, int, int], world_size: int = 3) -> State:
    """`stands`: stage, iteration, current number and world size of each member."""
    state = State(world_size, phase=Rebuilding(30.0), call=1)
    for member, (stage, iteration, rank, size) in enumerate(stands):
        word = CallEnter(1, member, world_size, CallSettings(), stage, iteration, rank, size, True)
        state.entries[member] = ("a", word)
    return state


@pytest.mark.parametrize(
    ("stands", "here", "world_size"),
    [
        (((R, 2, 0, 3), (R, 2, 1, 3), (R, 2, 2, 3)), [0, 1, 2], 3),
        (((R, 2, 0, 2), (W, 1, 1, 3), (R, 2, 1, 2)), [0, 2], 2),
        (((R, 0, 0, 3), (E, 0, 1, 3), (R, 0, 2, 3)), [0, 1, 2], 3),
        (((R, 0, 0, 2), (E, 0, 1, 3), (R, 0, 1, 2)), [0, 2], 2),
        (((W, 0, 0, 3), (E, 0, 1, 3), (R, 0, 2, 3)), [0, 2], 3),  # the first gives no more values for that iteration
        (((R, 4, 0, 3), (E, 0, 1, 3)), [0], 3),
    ],
)
def test_the_newest_iteration_is_the_one_that_goes_on(
    stands: tuple[tuple[Stage, int, int, int], ...], here: list[int], world_size: int
) -> None:
    state = coming(*stands)
    assert sorted(call_entry.newest(state)) == here
    assert call_entry.rebuilt_world_size(state) == world_size


def test_who_has_missed_a_decision_that_nobody_remembers_is_refused() -> None:
    state = coming((R, 2, 0, 2), (W, 1, 1, 3), (R, 2, 1, 2))
    orders = call_entry.rebuild(state)
    assert [each.members for each in orders if isinstance(each, Tell) and isinstance(each.order, CallRefused)] == [(1,)]
    assert (state.iteration, sorted(state.members), sorted(state.absent)) == (2, [0, 2], [1])
    assert isinstance(state.phase, Running)
    assert not state.past.can_replay


def test_ranks_that_contradict_each_other_are_all_refused() -> None:
    state = coming((R, 2, 0, 3), (R, 2, 0, 3), (R, 2, 2, 3))
    orders = call_entry.rebuild(state)
    assert isinstance(state.phase, Over)
    assert "call_rebuilt" not in {each.kind for each in orders if isinstance(each, Say)}


def test_what_is_said_while_rebuilding_is_kept_once_and_a_flood_refuses_its_own_rank() -> None:
    state = coming((R, 2, 0, 3), (R, 2, 1, 3))
    for _ in range(10_000):
        assert call_entry.hear_while_rebuilding(state, "a", Told(1, FaultsReported(1, 2))) == []
    for iteration in range(HELD_WORDS_MAX):
        assert call_entry.hear_while_rebuilding(state, "a", Told(0, FaultsReported(1, iteration))) == []
    (told,) = call_entry.hear_while_rebuilding(state, "a", Told(0, FaultsReported(1, HELD_WORDS_MAX)))
    assert isinstance(told, Tell)
    assert isinstance(told.order, CallRefused)
    assert told.members == (0,)
    assert list(state.entries) == [1]
    assert call_entry.hear_while_rebuilding(state, "a", Told(1, FaultsReported(1, 3))) == []
    held = call_state.release_held(state)
    assert len(held) == HELD_WORDS_MAX + 2
    assert [told.word for _, told in held if told.member == 1] == [FaultsReported(1, 2), FaultsReported(1, 3)]
