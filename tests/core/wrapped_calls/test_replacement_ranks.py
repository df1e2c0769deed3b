"""Which new processes take part, with which numbers, and for which do the others wait?"""

from __future__ import annotations

import pytest

from supervisor.core.wrapped_calls import call_state, replacement_ranks
from supervisor.core.wrapped_calls.call_messages import BeginIteration
from supervisor.core.wrapped_calls.call_state import Member, Newcomer, Replacement, Running, State
from supervisor.core.wrapped_calls.replacement_ranks import Plan


def state(
    here: dict[int, int],
    *,
    gone: dict[int, int | None],
    in_time: dict[int, int | None] | None = None,
    late: tuple[int, ...] = (),
) -> State:
    """Members and their numbers; `in_time` and `late` are new processes that have entered."""
    made = State(world_size=len(here) + len(gone) + len(late), phase=Running())
    made.members = {member: Member("a", rank) for member, rank in here.items()}
    made.now.gone = dict(gone)
    made.now.lost_active = set(gone)
    made.absent = dict.fromkeys((*gone, *late), "was killed by SIGKILL")
    made.now.replacing = {member: Replacement("a", rank, entered=True) for member, rank in (in_time or {}).items()}
    made.newcomers = {member: Newcomer("a", entered=True) for member in late}
    return made


@pytest.mark.parametrize(
    ("here", "gone", "in_time", "terminated", "standing_in"),
    [
        ({0: 0, 1: 1}, {}, {}, (), ()),
        ({0: 0, 2: 2}, {1: 1}, {}, (1,), ()),
        ({0: 0, 5: 1}, {1: None, 2: None}, {}, (2, 3), ()),
        ({0: 0, 2: 2}, {1: 1}, {1: 1}, (), (1,)),
        ({0: 0}, {1: 1, 2: 2}, {2: 2}, (1,), (2,)),
        # Numbers that nobody reported are found by elimination.
        ({0: 0, 2: 2}, {1: None}, {1: None}, (), (1,)),
        ({0: 0}, {1: None, 2: None}, {1: None, 2: None}, (), (1, 2)),
        ({0: 0}, {1: None, 2: 2}, {1: None}, (2,), (1,)),
    ],
)
def test_who_is_there_in_time_takes_the_place_of_the_lost_process(
    here: dict[int, int],
    gone: dict[int, int | None],
    in_time: dict[int, int | None],
    terminated: tuple[int, ...],
    standing_in: tuple[int, ...],
) -> None:
    size = len(here) + len(gone)
    made = state(here, gone=gone, in_time=in_time)
    assert replacement_ranks.plan(made, size) == Plan(size, terminated, standing_in=standing_in)


@pytest.mark.parametrize(
    ("here", "gone", "in_time", "late", "terminated", "new"),
    [
        # It is unknown which of two unreported numbers was its own.
        ({0: 0}, {1: None, 2: None}, {1: None}, (), (2,), (1,)),
        ({0: 0, 2: 1}, {}, {}, (1,), (), (1,)),
        # A late one makes all of them newcomers.
        ({0: 0, 2: 2}, {1: 1}, {1: 1}, (4, 3), (), (1, 3, 4)),
        ({0: 0, 4: 2}, {1: 1}, {}, (2,), (1, 3), (2,)),
    ],
)
def test_where_a_place_can_not_be_taken_rank_assignment_starts_anew_with_all_that_are_there(
    here: dict[int, int],
    gone: dict[int, int | None],
    in_time: dict[int, int | None],
    late: tuple[int, ...],
    terminated: tuple[int, ...],
    new: tuple[int, ...],
) -> None:
    made = state(here, gone=gone, in_time=in_time, late=late)
    made.world_size = 1 + max(*here, *gone, *late)
    assert replacement_ranks.plan(made, len(here) + len(gone)) == Plan(made.world_size, terminated, joining=new)


def test_what_can_not_be_replayed_has_not_to_be() -> None:
    made = state({0: 0}, gone={1: 1}, in_time={1: 1})
    made.past.is_rebuilt = True
    plan = replacement_ranks.plan(made, 2)
    assert plan == Plan(2, (), joining=(1,))
    replacement_ranks.admit(made, plan)
    assert made.past.can_replay


def test_who_is_not_there_in_time_may_join_later() -> None:
    made = state({0: 0, 7: 3, 3: 2}, gone={1: 1}, late=(2, 6))
    made.now.replacing = {1: Replacement("b", 1)}
    made.iteration = 4
    call_state.remember(made, BeginIteration(1, 4, 4))
    replacement_ranks.admit(made, replacement_ranks.plan(made, 4))
    assert made.past.begun_at == 5
    assert sorted(made.members) == [0, 2, 3, 6, 7]
    assert list(made.absent) == [1]
    assert (made.past.history, made.newcomers, made.now.replacing) == ([], {1: Newcomer("b")}, {})


@pytest.mark.parametrize(
    ("reserves", "late", "lost_active", "awaited"),
    [
        (0, (), {1, 2}, [1, 2]),
        (1, (), {1, 2}, [1, 2]),
        (2, (), {1, 2}, []),
        (1, (9,), {1, 2}, []),
        (0, (), {1}, [1]),
        (0, (), set[int](), []),  # reserves were lost
    ],
)
def test_nobody_is_waited_for_where_others_can_stand_in(
    reserves: int, late: tuple[int, ...], lost_active: set[int], awaited: list[int]
) -> None:
    made = state({0: 0, 3: 3, 4: 4}, gone={1: 1, 2: 2}, late=late)
    made.now.lost_active = lost_active
    made.now.replacing = {member: Replacement("a", member) for member in (1, 2)}
    for member in list(made.members)[:reserves]:
        made.members[member].is_active = False
    assert replacement_ranks.awaited(made) == awaited
    for each in made.now.replacing.values():
        each.entered = True
    assert replacement_ranks.awaited(made) == []


def test_who_is_lost_before_it_took_part_may_be_started_once_more_unless_it_went_by_itself() -> None:
    made = state({0: 0}, gone={1: 1}, late=(2, 3))
    assert replacement_ranks.lose(made, 2, may_come_again=True)
    assert replacement_ranks.lose(made, 3, may_come_again=False)
    assert not replacement_ranks.lose(made, 0, may_come_again=True)
    assert made.lost_newcomers == [("a", 2)]
    assert not replacement_ranks.enter(made, "a", 2)


def test_who_is_released_has_to_enter_anew() -> None:
    made = state({0: 0}, gone={}, late=(1,))
    made.newcomers[2] = Newcomer("a")
    assert replacement_ranks.release(made) == (1,)
    assert replacement_ranks.release(made) == ()
    replacement_ranks.come_in(made, 1)
    assert (list(made.newcomers), list(made.absent)) == ([2], [])
