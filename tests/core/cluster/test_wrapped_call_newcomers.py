"""For which ranks does a call wait after a death, and what becomes of a new process that comes too late?"""

from __future__ import annotations

from typing import cast

import pytest

from supervisor.core.cluster import wrapped_call
from supervisor.core.wrapped_calls.call_actions import Replace, Tell
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallEnter,
    CallLeave,
    CallRefused,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultsReported,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    Stage,
    Started,
)
from supervisor.core.wrapped_calls.call_state import Idle, Over, State
from supervisor.engine.recovery import record_text
from tests.core.cluster.test_wrapped_call import LOST, SETTINGS, Calls


def entering(member: int, world_size: int, *, call: int = 1) -> tuple[int, CallEnter]:
    return member, CallEnter(call, member, world_size, SETTINGS)


def begun(calls: Calls, numbers: dict[int, int], *, active: int) -> Calls:
    """Lets members begin under these numbers; those from `active` on are reserves."""
    call, at = calls.state.position
    size = len(numbers)
    return calls.say(
        *(
            (member, IterationBegan(call, at, rank, size, rank if rank < active else None, active))
            for member, rank in numbers.items()
        )
    )


def at_the_barrier(calls: Calls, *members: int, active: int = 99) -> Calls:
    call, at = calls.state.position
    known = {member: calls.state.members[member].rank or 0 for member in members}
    calls.say(*((member, FaultsReported(call, at)) for member in members))
    arrived = ((each, BarrierArrive(call, at, Barrier.ITERATION, rank, rank < active)) for each, rank in known.items())
    return calls.say(*arrived)


def with_reserve(*, units: int = 1) -> Calls:
    """Returns a call with four ranks, three of them active."""
    calls = Calls(4, units=units).enter()
    return begun(calls, {member: member for member in range(4)}, active=3)


def late(*, units: int = 1) -> Calls:
    """Returns a call in which rank 1 of three was killed; the two others have gone on without its new process."""
    calls = Calls(3, units=units).enter().begin().say((1, LOST))
    assert len(calls.of(Replace)) == 1
    calls.units -= 1
    at_the_barrier(calls, 0, 2).say((1, Started())).pass_to(5.0)
    assert calls.said() == ["replacement_late", "iteration_restarted"]
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 1, 3, (1,)))]
    return begun(calls, {0: 0, 2: 1}, active=2)


# --- ranks awaited -------------------------------------------------------------------------------------------------


def test_a_reserve_stands_in_at_once() -> None:
    calls = at_the_barrier(with_reserve().say((1, LOST)), 0, 2, 3, active=3)
    assert calls.told(BeginIteration) == [Tell((0, 2, 3), BeginIteration(1, 1, 4, (1,)))]
    assert calls.said() == ["iteration_restarted"]


def test_nobody_waits_for_the_new_process_of_a_reserve() -> None:
    calls = at_the_barrier(with_reserve().say((3, LOST)), 0, 1, 2, active=3)
    assert calls.told(BeginIteration) == [Tell((0, 1, 2), BeginIteration(1, 1, 4, (3,)))]


def test_where_more_are_lost_than_reserves_are_there_the_wait_lasts_until_enough_have_come() -> None:
    calls = at_the_barrier(with_reserve().say((1, LOST), (2, LOST)), 0, 3, active=3)
    assert calls.told(BeginIteration) == []
    assert wrapped_call.next_deadline_s(calls.state) == 5.0
    calls.say(entering(2, 4))
    assert calls.told(BeginIteration) == [Tell((0, 3), BeginIteration(1, 1, 4, (1,)))]
    assert calls.told(Entered) == [Tell((2,), Entered(1, 1, (BeginIteration(1, 1, 4, (1,)),)))]


def test_a_newcomer_that_waits_is_as_good_as_a_reserve() -> None:
    calls = late(units=2).say(entering(1, 3)).say((2, LOST))
    at_the_barrier(calls, 0)
    assert calls.told(BeginIteration) == [Tell((0,), BeginIteration(1, 2, 3, (2,), anew=True))]
    assert calls.told(Entered) == [Tell((1,), Entered(1, 2, (BeginIteration(1, 2, 3, (2,), anew=True),)))]


# --- late processes ------------------------------------------------------------------------------------------------


def test_who_comes_late_is_told_to_wait_and_joins_with_the_next_fault() -> None:
    calls = late().say(entering(1, 3))
    assert calls.orders[0] == Tell((1,), CallUnderway(1))
    assert calls.said() == ["replacement_waits"]
    calls.say((0, RankFault(1, 1, 0, Interruption.EXCEPTION, "ValueError")))
    at_the_barrier(calls, 0, 2)
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 2, 3, (), anew=True))]
    assert calls.told(Entered) == [Tell((1,), Entered(1, 2, (BeginIteration(1, 2, 3, (), anew=True),)))]
    assert sorted(calls.state.members) == [0, 1, 2]
    calls.begin().arrive(0, 1, 2, barrier=Barrier.COMPLETION)
    assert isinstance(calls.state.phase, Idle)


def test_what_was_before_it_joined_is_told_to_nobody() -> None:
    calls = late(units=2).say(entering(1, 3)).fault(0)
    at_the_barrier(calls, 0, 2)
    calls.say(*((member, ExchangeValue(1, 2, "t", member, "x")) for member in range(3))).begin().say((2, LOST))
    at_the_barrier(calls, 0, 1).say(entering(2, 3))
    (told,) = calls.told(Entered)
    history = (BeginIteration(1, 2, 3, (), anew=True), BeginIteration(1, 3, 3))
    assert told.order == Entered(1, 3, history, (Exchanged(1, 2, "t", ((0, "x"), (1, "x"), (2, "x"))),))


def test_a_member_whose_entry_was_lost_on_the_way_is_told_once_more() -> None:
    calls = late().say(entering(1, 3)).fault(0)
    at_the_barrier(calls, 0, 2)
    assert calls.say(entering(1, 3)).told(Entered) == [
        Tell((1,), Entered(1, 2, (BeginIteration(1, 2, 3, (), anew=True),))),
    ]


@pytest.mark.parametrize("entered", [True, False])
def test_a_newcomer_that_dies_disturbs_nobody_and_is_started_again_with_the_next_fault(entered: bool) -> None:
    calls = late(units=2)
    if entered:
        calls.say(entering(1, 3))
    calls.say((1, LOST))
    assert calls.said() == ["replacement_lost"]
    assert len(calls.orders) == 1
    calls.say((2, LOST))
    (replace,) = calls.of(Replace)
    text = "rank 2 was lost in iteration 1, and rank 1 before it took part again"
    assert replace == Replace((("a", 2), ("a", 1)), True, text)
    at_the_barrier(calls, 0).say((1, Started()), entering(1, 3))
    assert calls.told(BeginIteration) == [Tell((0,), BeginIteration(1, 2, 3, (2,), anew=True))]


def test_without_budget_nobody_is_started_again() -> None:
    assert late().say((1, LOST)).say((2, LOST)).of(Replace) == []


def test_a_newcomer_that_goes_by_itself_is_not_started_again() -> None:
    calls = late(units=2).say(entering(1, 3)).say((1, CallLeave(1, 0, Leaving.FAULT, "KeyboardInterrupt")))
    assert calls.said() == ["replacement_lost"]
    (replace,) = calls.say((1, LOST)).say((2, LOST)).of(Replace)
    assert isinstance(replace, Replace)
    assert replace.lost == (("a", 2),)


# --- ranks that leave unfit----------------------------------------------------------------------------------------

ENDED = Lost(Interruption.TERMINATED, "exited with code 1", failed=True)


def unfit(*, units: int = 1) -> Calls:
    """Returns a call in which a health check refused rank 1 of three, after a fault of its own."""
    calls = Calls(3, units=units).enter().begin().fault(1)
    calls.say(*((member, FaultsReported(1, 0)) for member in (0, 2)))
    return calls.say((1, CallLeave(1, 0, Leaving.FAULT, "HealthCheckError: no", unfit=True)))


def spent(calls: Calls) -> Calls:
    """Takes from the budget what the last orders used."""
    calls.units -= sum(each.takes_unit for each in calls.of(Replace) if isinstance(each, Replace))
    return calls


def test_an_unfit_rank_need_not_wait_and_is_replaced_once_its_process_has_ended() -> None:
    calls = unfit()
    (told,) = calls.told(CallRefused)
    assert told.members == (1,)
    assert calls.of(Replace) == []
    assert at_the_barrier(calls, 0, 2).told(BeginIteration) == []
    assert calls.say((1, ENDED)).of(Replace) == [
        Replace((("a", 1),), True, "rank 1 left call 1 as unfit, and its process has ended")
    ]
    assert calls.told(BeginIteration) == []
    calls.say((1, Started()), entering(1, 3))
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 1, 3))]
    assert calls.told(Entered) == [Tell((1,), Entered(1, 1, (BeginIteration(1, 1, 3),)))]


def test_after_a_supervisors_return_an_unfit_rank_is_replaced_and_awaited_as_before() -> None:
    calls = at_the_barrier(unfit(units=2), 0, 2)
    calls.state = cast("State", record_text.read(record_text.write(calls.state)))
    (replace,) = spent(calls.say((1, ENDED))).of(Replace)
    assert isinstance(replace, Replace)
    assert (replace.takes_unit, calls.units) == (True, 1)
    assert calls.told(BeginIteration) == []
    assert set(calls.state.now.replacing) == {1}
    (replace,) = spent(calls.say((2, LOST))).of(Replace)
    assert isinstance(replace, Replace)
    assert (replace.takes_unit, calls.units) == (False, 1), "it is the same fault"


def test_an_unfit_rank_whose_process_ends_well_is_not_replaced_and_holds_nobody_up() -> None:
    calls = at_the_barrier(unfit(), 0, 2).say((1, Lost(Interruption.TERMINATED, "exited with code 0", failed=False)))
    assert calls.of(Replace) == []
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 1, 3, (1,)))]


def test_without_budget_an_unfit_rank_waits_for_the_others_which_go_on_without() -> None:
    calls = unfit(units=0)
    assert calls.told(CallRefused) == []
    at_the_barrier(calls, 0, 2)
    assert calls.told(BeginIteration) == [Tell((0, 2, 1), BeginIteration(1, 1, 3, (1,)))]
    assert calls.say((1, ENDED)).orders == ()


def test_a_rank_that_leaves_by_its_own_wish_is_not_replaced() -> None:
    calls = Calls(3, units=1).enter().begin().say((1, CallLeave(1, 0, Leaving.FAULT, "SystemExit: 3")))
    assert calls.told(CallRefused) == []
    assert at_the_barrier(calls, 0, 2).told(BeginIteration) == [Tell((0, 2, 1), BeginIteration(1, 1, 3, (1,)))]
    assert calls.say((1, ENDED)).of(Replace) == []


def test_an_unfit_process_that_ends_late_is_replaced_then_for_the_unit_of_its_own_fault() -> None:
    calls = at_the_barrier(unfit(units=2), 0, 2).pass_to(5.0)
    assert calls.said() == ["replacement_late", "iteration_restarted"]
    assert calls.of(Replace) == []
    begun(calls, {0: 0, 2: 1}, active=2)
    (replace,) = spent(calls.say((1, ENDED))).of(Replace)
    assert isinstance(replace, Replace)
    assert replace.takes_unit
    calls.say((1, Started()), entering(1, 3))
    assert calls.told(CallUnderway) == [Tell((1,), CallUnderway(1))]
    (replace,) = spent(calls.say((2, LOST))).of(Replace)
    assert isinstance(replace, Replace)
    assert replace.takes_unit
    assert calls.units == 0
    assert at_the_barrier(calls, 0).told(BeginIteration) == [
        Tell((0,), BeginIteration(1, 2, 3, (2,), anew=True)),
    ]


def test_unfit_and_killed_in_one_fault_take_one_unit() -> None:
    calls = spent(unfit().say((2, LOST)))
    (replace,) = calls.say((1, ENDED)).of(Replace)
    assert isinstance(replace, Replace)
    assert not replace.takes_unit
    assert calls.units == 0


def test_an_unfit_rank_whose_process_outlives_the_call_is_not_replaced() -> None:
    calls = begun(at_the_barrier(unfit(), 0, 2).pass_to(5.0), {0: 0, 2: 1}, active=2)
    calls.arrive(0, 2, barrier=Barrier.COMPLETION)
    assert isinstance(calls.state.phase, Idle)
    assert calls.say((1, ENDED)).orders == ()


def test_with_its_node_an_unfit_rank_is_lost_like_the_others_there() -> None:
    calls = unfit(units=2)
    gone = wrapped_call.RanksGone("a", (1,), "was lost with node a", may_come_again=True)
    calls.state, orders = wrapped_call.step(calls.state, gone, now_s=0.0, units_left=2)
    assert [each for each in orders if isinstance(each, Replace)] == []
    offered = wrapped_call.RanksOffered("b", (1,))
    calls.state, orders = wrapped_call.step(calls.state, offered, now_s=0.0, units_left=2)
    assert [each.lost for each in orders if isinstance(each, Replace)] == [(("b", 1),)]
    at_the_barrier(calls.say((1, Started()), entering(1, 3)), 0, 2)
    assert calls.told(Entered) == [Tell((1,), Entered(1, 1, (BeginIteration(1, 1, 3, (), anew=True),)))]


# --- how a call ends while one waits -------------------------------------------------------------------------------


def test_a_newcomer_is_released_when_the_call_succeeds() -> None:
    calls = late().say(entering(1, 3)).arrive(0, 2, barrier=Barrier.COMPLETION)
    assert calls.told(Committed) == [Tell((0, 2, 1), Committed(1, 1))]


def test_one_that_comes_after_the_success_is_released_too() -> None:
    calls = late().arrive(0, 2, barrier=Barrier.COMPLETION)
    assert calls.told(Committed) == [Tell((0, 2), Committed(1, 1))]
    assert calls.say(entering(1, 3)).orders == (Tell((1,), Committed(1, 1)),)


def test_in_the_next_call_nobody_waits_for_it_and_it_takes_part_if_it_is_there() -> None:
    calls = late().say(entering(1, 3)).arrive(0, 2, barrier=Barrier.COMPLETION)
    calls.say(entering(0, 3, call=2), entering(1, 3, call=2), entering(2, 3, call=2))
    assert calls.told(Entered) == [Tell((0, 1, 2), Entered(2))]
    calls = late().say(entering(1, 3)).arrive(0, 2, barrier=Barrier.COMPLETION)
    calls.say(entering(0, 3, call=2), entering(2, 3, call=2))
    assert calls.told(Entered) == [Tell((0, 2), Entered(2, 0, (BeginIteration(2, 0, 3, (1,)),)))]
    assert calls.say(entering(1, 3, call=2)).orders[0] == Tell((1,), CallUnderway(2))


def test_when_all_others_are_lost_the_call_is() -> None:
    calls = late().say(entering(1, 3)).say((0, LOST), (2, LOST))
    assert isinstance(calls.state.phase, Over)
    assert len(calls.say(entering(1, 3)).told(CallRefused)) == 1


# --- a coordinator without memory ----------------------------------------------------------------------------------


def test_one_that_waits_while_its_supervisor_forgets_may_still_join() -> None:
    calls = Calls(3)
    back = {
        member: CallEnter(1, member, 3, SETTINGS, Stage.RUNNING, 4, rank, 2, True) for member, rank in ((0, 0), (2, 1))
    }
    calls.say((0, back[0]), entering(1, 3), (2, back[2]))
    assert calls.told(CallUnderway) == [Tell((1,), CallUnderway(1))]
    calls.fault(0)
    at_the_barrier(calls, 0, 2)
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 5, 3, (), anew=True))]
