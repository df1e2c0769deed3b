"""Does each iteration get one decision, whatever fails at whatever moment? Which ranks are told what, and when?"""

from __future__ import annotations

import itertools

import msgspec
import pytest

from supervisor.core.cluster import wrapped_call
from supervisor.core.cluster.cluster_messages import CallReport, DeadlineReached
from supervisor.core.wrapped_calls import call_actions
from supervisor.core.wrapped_calls.call_actions import EndCall, Replace, Say, Tell
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallLeave,
    CallRefused,
    CallSettings,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultRecord,
    FaultsReported,
    Interrupt,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    Restart,
    Stage,
    Started,
    Told,
    Word,
)
from supervisor.core.wrapped_calls.call_state import Idle, LastCall, Over, Restarting, Running

SETTINGS = CallSettings(last_call_wait_s=1.0, barrier_timeout_s=60.0, heartbeat_timeout_s=30.0)


class Calls:
    """The machine with `world_size` ranks on one node; `orders` has the last event's orders."""

    def __init__(self, world_size: int = 3, *, units: int = 0) -> None:
        self.state = wrapped_call.initial_state(world_size)
        self.now_s = 0.0
        self.units = units
        self.orders: tuple[call_actions.Order, ...] = ()

    def say(self, *told: tuple[int, Word], at: float | None = None) -> Calls:
        self.now_s = self.now_s if at is None else at
        report = CallReport("a", 0, tuple(Told(member, word) for member, word in told))
        self.state, self.orders = wrapped_call.step(self.state, report, now_s=self.now_s, units_left=self.units)
        return self

    def all(self, word: Word, *, but: tuple[int, ...] = ()) -> Calls:
        return self.say(*((member, word) for member in range(self.state.world_size) if member not in but))

    def pass_to(self, now_s: float) -> Calls:
        self.now_s = now_s
        self.state, self.orders = wrapped_call.step(self.state, DeadlineReached(), now_s=now_s, units_left=self.units)
        return self

    def enter(self, *, call: int = 1, but: tuple[int, ...] = ()) -> Calls:
        world_size = self.state.world_size
        members = [member for member in range(world_size) if member not in but]
        return self.say(*((member, CallEnter(call, member, world_size, SETTINGS)) for member in members))

    def begin(self, numbers: dict[int, int] | None = None) -> Calls:
        """Lets every member begin the iteration under its number in `numbers`, or else its own."""
        known = numbers or {member: member for member in self.state.members}
        call, at = self.state.position
        return self.say(
            *((member, IterationBegan(call, at, rank, len(known), rank, len(known))) for member, rank in known.items())
        )

    def arrive(self, *members: int, barrier: Barrier = Barrier.ITERATION) -> Calls:
        call, at = self.state.position
        known = {member: self.state.members[member].rank for member in members}
        return self.say(
            *((member, BarrierArrive(call, at, barrier, rank or 0, True)) for member, rank in known.items())
        )

    def fault(self, member: int, reason: str = "ValueError: bad loss") -> Calls:
        call, at = self.state.position
        return self.say((member, RankFault(call, at, member, Interruption.EXCEPTION, reason)))

    def told(self, kind: type) -> list[Tell]:
        return [each for each in self.orders if isinstance(each, Tell) and isinstance(each.order, kind)]

    def said(self) -> list[str]:
        return [each.kind for each in self.orders if isinstance(each, Say)]

    def of(self, kind: type) -> list[call_actions.Order]:
        return [each for each in self.orders if isinstance(each, kind)]


def started(world_size: int = 3, *, units: int = 0) -> Calls:
    calls = Calls(world_size, units=units).enter()
    assert calls.told(Entered) == [Tell(tuple(range(world_size)), Entered(1))]
    return calls.begin()


LOST = Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True)

# --- the whole way -------------------------------------------------------------------------------------------------


def test_a_call_begins_when_the_last_rank_has_entered() -> None:
    calls = Calls(3).enter(but=(1,))
    assert calls.orders == ()
    calls.say((1, CallEnter(1, 1, 3, SETTINGS)))
    assert calls.told(Entered) == [Tell((0, 2, 1), Entered(1))]


def test_a_call_succeeds_when_the_last_rank_has_arrived_and_the_first_active_one_calls_the_reserve() -> None:
    calls = started(3)
    calls.arrive(2, barrier=Barrier.COMPLETION)
    assert calls.orders == (Tell((0, 1, 2), CallCompleted(1, 0)),)
    assert calls.arrive(0, barrier=Barrier.COMPLETION).orders == ()
    calls.arrive(1, barrier=Barrier.COMPLETION)
    assert calls.told(Committed) == [Tell((0, 1, 2), Committed(1, 0))]
    assert [each.stands for each in calls.of(EndCall) if isinstance(each, EndCall)] == [True]
    assert isinstance(calls.state.phase, Idle)


def test_a_fault_interrupts_all_and_the_last_call_is_over_when_all_have_reported() -> None:
    calls = started(3).fault(1)
    assert calls.told(Interrupt) == [Tell((0, 1, 2), Interrupt(1, 0))]
    assert calls.say((0, FaultsReported(1, 0))).orders == ()
    record = FaultRecord(1, Interruption.EXCEPTION, "ValueError: bad loss")
    assert calls.say((2, FaultsReported(1, 0))).orders == (Tell((0, 1, 2), Restart(1, 0, (record,))),)
    assert calls.arrive(0, 1).orders == ()
    calls.arrive(2)
    assert calls.told(BeginIteration) == [Tell((0, 1, 2), BeginIteration(1, 1, 3))]
    assert calls.said() == ["iteration_restarted"]


def test_two_faults_within_the_last_call_are_one_restart_that_names_both() -> None:
    calls = started(3).fault(1).fault(2, "RuntimeError: peer")
    assert calls.said() == []
    calls.say((0, FaultsReported(1, 0)))
    assert [each.order for each in calls.told(Restart)] == [
        Restart(
            1,
            0,
            (
                FaultRecord(1, Interruption.EXCEPTION, "ValueError: bad loss"),
                FaultRecord(2, Interruption.EXCEPTION, "RuntimeError: peer"),
            ),
        )
    ]
    calls.fault(0)  # This fault comes late and is part of the same restart.
    calls.arrive(0, 1, 2)
    assert calls.state.iteration == 1


def test_who_does_not_report_is_waited_for_until_the_last_call_is_over() -> None:
    calls = started(3).fault(1)
    assert wrapped_call.next_deadline_s(calls.state) == 1.0
    assert calls.pass_to(0.9).orders == ()
    assert len(calls.pass_to(1.0).told(Restart)) == 1


def test_ranks_that_have_returned_are_restarted_with_the_others() -> None:
    calls = started(2).arrive(0, barrier=Barrier.COMPLETION).fault(1)
    assert calls.told(Interrupt) == [Tell((0, 1), Interrupt(1, 0))]
    calls.say((0, FaultsReported(1, 0))).arrive(0, 1)
    calls.begin().arrive(0, barrier=Barrier.COMPLETION)
    assert calls.told(CallCompleted)
    assert calls.told(Committed) == []


# --- losses --------------------------------------------------------------------------------------------------------


def test_a_dead_rank_is_terminated_by_its_current_number() -> None:
    calls = started(4).say((1, LOST))
    assert calls.said() == ["rank_lost_in_call", "iteration_interrupted"]
    calls.all(FaultsReported(1, 0), but=(1,)).arrive(0, 2, 3)
    assert calls.told(BeginIteration) == [Tell((0, 2, 3), BeginIteration(1, 1, 4, (1,)))]
    calls.begin({0: 0, 2: 1, 3: 2}).say((2, LOST))
    assert calls.state.now.faults[2][Interruption.TERMINATED].rank == 1
    calls.say((0, FaultsReported(1, 1)), (3, FaultsReported(1, 1))).arrive(0, 3)
    assert calls.told(BeginIteration) == [Tell((0, 3), BeginIteration(1, 2, 3, (1,)))]


def test_a_death_after_the_decision_is_a_fault_of_the_iteration_that_it_began() -> None:
    calls = started(3).fault(0).all(FaultsReported(1, 0), but=(0,)).arrive(0, 1, 2)
    calls.say((2, LOST))
    assert calls.state.position == (1, 1)
    assert isinstance(calls.state.phase, LastCall)
    calls.say(*((member, IterationBegan(1, 1, member, 3, member, 3)) for member in (0, 1)))
    calls.say((0, FaultsReported(1, 1)), (1, FaultsReported(1, 1))).arrive(0, 1)
    assert calls.told(BeginIteration) == [Tell((0, 1), BeginIteration(1, 2, 3, (2,)))]


def test_who_leaves_counts_as_arrived_and_is_told_what_becomes_of_the_others() -> None:
    calls = started(3).say((1, CallLeave(1, 0, Leaving.FAULT, "SystemExit: 3")))
    assert calls.said() == ["rank_left_call", "iteration_interrupted"]
    calls.say((0, FaultsReported(1, 0)), (2, FaultsReported(1, 0))).arrive(0, 2)
    assert calls.told(BeginIteration) == [Tell((0, 2, 1), BeginIteration(1, 1, 3, (1,)))]


def test_a_discarded_rank_is_no_fault() -> None:
    calls = started(3).say((2, LOST)).say((0, FaultsReported(1, 0)), (1, FaultsReported(1, 0))).arrive(0, 1)
    calls.say((1, CallLeave(1, 1, Leaving.DISCARDED, "RankDiscarded")))
    assert calls.said() == ["rank_discarded"]
    assert isinstance(calls.state.phase, Running)
    calls.begin({0: 0}).arrive(0, barrier=Barrier.COMPLETION)
    assert calls.told(Committed) == [Tell((0,), Committed(1, 1))]


def test_when_nobody_is_left_the_call_is_lost_and_those_who_left_are_released() -> None:
    calls = started(2)
    calls.say((0, CallLeave(1, 0, Leaving.FAULT, "RestartAbort")))
    calls.say((1, LOST))
    assert calls.told(BeginIteration) == [Tell((0,), BeginIteration(1, 1, 2, (0, 1)))]
    (end,) = calls.of(EndCall)
    assert isinstance(end, EndCall)
    assert not end.stands
    assert end.reason == "no rank is left in call 1: rank 0 left the call: RestartAbort; rank 1 was killed by SIGKILL"
    assert isinstance(calls.state.phase, Over)


def test_a_rank_that_ends_before_it_enters_is_not_waited_for() -> None:
    calls = Calls(2).enter(but=(1,)).say((1, LOST))
    (told,) = calls.told(CallRefused)
    assert told == Tell((0,), CallRefused(1, "cannot begin call 1: rank 1 was killed by SIGKILL before it entered"))
    late = Calls(2).say((1, LOST)).enter(but=(1,))
    assert len(late.told(CallRefused)) == 1


def test_a_rank_that_waits_in_vain_for_the_others_ends_the_call_and_its_reason_names_who_is_missing() -> None:
    why = "BarrierTimeout: rank 1 has not called it"
    calls = Calls(3).enter(but=(1,)).say((0, CallLeave(1, 0, Leaving.FAULT, why)))
    told = f"cannot begin call 1: rank 0 left before all ranks had entered: {why}"
    assert calls.told(CallRefused) == [Tell((0, 2), CallRefused(1, told))]
    calls.say((1, CallEnter(1, 1, 3, SETTINGS)))
    assert calls.told(CallRefused)[-1] == Tell((1,), CallRefused(1, told))
    calls.enter(call=2)
    assert [told.members for told in calls.told(Entered)] == [(0, 1, 2)]


def test_a_call_after_one_that_lost_ranks_begins_with_those_that_are_left() -> None:
    calls = started(3).say((1, LOST)).say((0, FaultsReported(1, 0)), (2, FaultsReported(1, 0))).arrive(0, 2)
    calls.begin({0: 0, 2: 1}).arrive(0, 2, barrier=Barrier.COMPLETION)
    calls.enter(call=2, but=(1,))
    assert calls.told(Entered) == [Tell((0, 2), Entered(2, 0, (BeginIteration(2, 0, 3, (1,)),)))]


# --- replaced ranks ------------------------------------------------------------------------------------------------


def replaced(calls: Calls) -> Calls:
    """Returns a call in which rank 1 of three was killed; the two others wait at the iteration barrier."""
    calls.say((1, LOST))
    assert calls.of(Replace) == [Replace((("a", 1),), True, "rank 1 was lost in iteration 0")]
    return calls.say((0, FaultsReported(1, 0)), (2, FaultsReported(1, 0))).arrive(0, 2)


def test_a_new_process_takes_the_place_of_the_lost_rank_and_the_world_is_whole() -> None:
    calls = replaced(started(3, units=1))
    assert calls.told(BeginIteration) == []
    assert wrapped_call.next_deadline_s(calls.state) == 5.0
    calls.say((1, Started())).say((1, CallEnter(1, 1, 3, SETTINGS)))
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 1, 3))]
    assert calls.told(Entered) == [Tell((1,), Entered(1, 1, (BeginIteration(1, 1, 3),)))]
    assert sorted(calls.state.members) == [0, 1, 2]


def test_a_new_process_that_dies_is_not_waited_for_any_longer() -> None:
    calls = replaced(started(3, units=1)).say((1, LOST))
    assert calls.said() == ["replacement_lost", "iteration_restarted"]
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 1, 3, (1,)))]


def test_one_fault_takes_one_unit_however_many_ranks_it_took() -> None:
    calls = started(4, units=1).say((1, LOST))
    assert [each.takes_unit for each in calls.of(Replace) if isinstance(each, Replace)] == [True]
    calls.units = 0
    calls.say((2, LOST))
    assert [each.takes_unit for each in calls.of(Replace) if isinstance(each, Replace)] == [False]
    calls.say((0, FaultsReported(1, 0)), (3, FaultsReported(1, 0))).arrive(0, 3)
    calls.say((1, CallEnter(1, 1, 4, SETTINGS)), (2, CallEnter(1, 2, 4, SETTINGS)))
    calls.begin().say((1, LOST))
    assert calls.of(Replace) == []


@pytest.mark.parametrize(
    "lost",
    [CallLeave(1, 0, Leaving.FAULT, "SystemExit: 1"), Lost(Interruption.TERMINATED, "exited with code 0", False)],
)
def test_who_wanted_to_go_is_not_replaced(lost: Word) -> None:
    assert started(3, units=5).say((1, lost)).of(Replace) == []


def test_a_new_process_can_not_take_part_in_a_later_call() -> None:
    """The process counts its calls from 1, and the first call is over."""
    calls = started(2, units=5).arrive(0, 1, barrier=Barrier.COMPLETION)
    calls.enter(call=2).begin().say((1, LOST))
    assert calls.of(Replace) == []


# --- exchanges -----------------------------------------------------------------------------------------------------


def test_values_are_told_when_the_last_member_has_given_one_and_without_the_dead() -> None:
    calls = Calls(3).enter()
    calls.say(*((member, ExchangeValue(1, 0, "tree/1", member, f"v{member}")) for member in (0, 2)))
    assert calls.orders == ()
    calls.say((0, LOST))
    assert calls.told(Exchanged) == []
    calls.say((1, ExchangeValue(1, 0, "tree/1", 1, "v1")))
    assert calls.told(Exchanged) == [Tell((1, 2), Exchanged(1, 0, "tree/1", ((1, "v1"), (2, "v2"))))]
    assert calls.say((1, ExchangeValue(1, 0, "tree/1", 1, "v1"))).told(Exchanged) == [
        Tell((1,), Exchanged(1, 0, "tree/1", ((1, "v1"), (2, "v2"))))
    ]


def test_a_new_process_is_told_what_was_exchanged_before() -> None:
    calls = Calls(2, units=1).enter()
    calls.say((0, ExchangeValue(1, 0, "t", 0, "x")), (1, ExchangeValue(1, 0, "t", 1, "y"))).begin()
    calls.say((1, LOST)).say((0, FaultsReported(1, 0))).arrive(0).say((1, CallEnter(1, 1, 2, SETTINGS)))
    (told,) = calls.told(Entered)
    assert told.order == Entered(1, 1, (BeginIteration(1, 1, 2),), (Exchanged(1, 0, "t", ((0, "x"), (1, "y"))),))


# --- contradictions -----------------------------------------------------------------------------------------------


def test_a_rank_assignment_that_differs_between_ranks_ends_the_call_with_both_values() -> None:
    calls = Calls(2).enter()
    calls.say((0, IterationBegan(1, 0, 0, 2, 0, 2)), (1, IterationBegan(1, 0, 1, 1, 1, 1)))
    (told,) = calls.told(CallRefused)
    assert told.members == (0, 1)
    assert "world size 1 (1 active) on rank 1 and to 2 (2 active) on another" in str(told.order)


def test_a_number_given_twice_ends_the_call() -> None:
    calls = Calls(2).enter()
    calls.say((0, IterationBegan(1, 0, 0, 2, 0, 2)), (1, IterationBegan(1, 0, 0, 2, 1, 2)))
    assert len(calls.told(CallRefused)) == 1


def test_words_of_an_older_iteration_or_another_call_change_nothing() -> None:
    calls = started(2).fault(0).say((1, FaultsReported(1, 0))).arrive(0, 1).begin()
    for word in (
        RankFault(1, 0, 0, Interruption.EXCEPTION, "late"),
        RankFault(2, 1, 0, Interruption.EXCEPTION, "of another call"),
        BarrierArrive(1, 0, Barrier.COMPLETION, 0, True),
        FaultsReported(1, 0),
    ):
        assert calls.say((0, word)).orders == ()
    assert isinstance(calls.state.phase, Running)


def test_ranks_at_different_calls_are_told_so() -> None:
    calls = Calls(2).say((0, CallEnter(1, 0, 2, SETTINGS)), (1, CallEnter(2, 1, 2, SETTINGS)))
    assert {member for each in calls.told(CallRefused) for member in each.members} == {0, 1}


# --- ranks that return ---------------------------------------------------------------------------------------------


def back(member: int, stage: Stage, *, at: int = 0, rank: int | None = None) -> tuple[int, CallEnter]:
    number = member if rank is None else rank
    return member, CallEnter(1, member, 3, SETTINGS, stage, at, number, 3, True)


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.COMPLETING, Stage.UNWINDING])
def test_who_comes_back_is_told_the_interruption_and_the_restart_that_it_has_missed(stage: Stage) -> None:
    calls = started(3).fault(0)
    assert calls.say(back(1, stage)).told(Interrupt) == [Tell((1,), Interrupt(1, 0))]
    calls.pass_to(1.0)
    assert [each.members for each in calls.say(back(1, stage)).told(Restart)] == [(1,)]
    assert isinstance(calls.state.phase, Restarting)


def test_who_has_missed_the_decision_is_told_the_same_one() -> None:
    calls = started(3).say((2, LOST)).say((0, FaultsReported(1, 0)), (1, FaultsReported(1, 0))).arrive(0, 1)
    calls.say(back(1, Stage.RESTARTING))
    assert calls.told(BeginIteration) == [Tell((1,), BeginIteration(1, 1, 3, (2,)))]


def test_who_has_missed_the_commit_is_told_it_though_the_others_have_gone_on() -> None:
    calls = started(3).arrive(0, 1, 2, barrier=Barrier.COMPLETION)
    calls.say((0, CallEnter(2, 0, 3, SETTINGS)))
    assert calls.say(back(1, Stage.COMPLETING)).orders == (Tell((1,), Committed(1, 0)),)


def test_where_a_rank_stands_says_what_was_lost_on_the_way() -> None:
    calls = Calls(3).enter()
    calls.say((0, IterationBegan(1, 0, 0, 3, 0, 3)), (2, IterationBegan(1, 0, 2, 3, 2, 3)))
    calls.arrive(0, 2, barrier=Barrier.COMPLETION)
    calls.say(back(1, Stage.COMPLETING))
    assert calls.told(Committed) == [Tell((0, 1, 2), Committed(1, 0))]


def test_a_coordinator_without_memory_goes_on_as_the_ranks_say() -> None:
    calls = Calls(3).say(back(0, Stage.RUNNING, at=4))
    assert wrapped_call.next_deadline_s(calls.state) == 30.0
    calls.say((1, RankFault(1, 4, 1, Interruption.EXCEPTION, "said meanwhile")))
    calls.say(back(1, Stage.UNWINDING, at=4), back(2, Stage.RUNNING, at=4))
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
    calls.say((0, FaultsReported(1, 4)), (2, FaultsReported(1, 4))).arrive(0, 1, 2)
    assert calls.told(BeginIteration) == [Tell((0, 1, 2), BeginIteration(1, 5, 3))]


def test_a_coordinator_without_memory_decides_again_and_then_hears_the_values_for_that_iteration() -> None:
    """They come before the decision too, from ranks that have heard it from the coordinator before."""
    values = [(member, ExchangeValue(1, 5, "t", member, "v")) for member in range(3)]
    calls = Calls(3)
    for member in range(3):
        calls.say(back(member, Stage.RESTARTING, at=4), values[member])
    assert calls.told(BeginIteration) == [Tell((0, 1, 2), BeginIteration(1, 5, 3))]
    calls.say(*values)
    assert calls.told(Exchanged) == [Tell((0, 1, 2), Exchanged(1, 5, "t", tuple((each, "v") for each in range(3))))]


def test_a_coordinator_without_memory_waits_for_the_missing_as_long_as_for_a_silent_node() -> None:
    calls = Calls(3).say(back(0, Stage.RUNNING, at=4), back(2, Stage.RUNNING, at=4, rank=1))
    calls.pass_to(29.9)
    assert calls.orders == ()
    calls.pass_to(30.0)
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
    assert [record.rank for told in calls.state.now.faults.values() for record in told.values()] == [2]
    calls.say((0, FaultsReported(1, 4)), (2, FaultsReported(1, 4))).arrive(0, 2)
    assert calls.told(BeginIteration) == [Tell((0, 2), BeginIteration(1, 6, 3, (2,)))]  # Rank 1 may be in iteration 5.
    assert len(calls.say(back(1, Stage.RUNNING, at=5)).told(CallRefused)) == 1
    assert calls.say(back(0, Stage.RESTARTING, at=4)).told(BeginIteration) == [
        Tell((0,), BeginIteration(1, 6, 3, (2,)))
    ]


def test_a_coordinator_without_memory_does_not_wait_for_who_is_known_to_have_ended() -> None:
    calls = Calls(3).say((1, Lost(Interruption.TERMINATED, "ended", failed=False)))
    calls.say(back(0, Stage.RUNNING, at=4), back(2, Stage.RUNNING, at=4, rank=1))
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
    (told,) = [record for told in calls.state.now.faults.values() for record in told.values()]
    assert (told.rank, told.reason) == (2, "ended, or had not heard the last decision, when its supervisor was lost")


IN_CALL = msgspec.structs.replace(LOST, in_call=1)


def test_a_call_that_only_an_earlier_coordinator_knew_is_over_when_all_its_ranks_have_ended() -> None:
    calls = Calls(3).say((0, IN_CALL), (2, IN_CALL))
    assert calls.orders == ()  # The last one may come back.
    calls.say((1, LOST))
    assert [(each.call, each.stands) for each in calls.of(EndCall) if isinstance(each, EndCall)] == [(1, False)]
    assert calls.said() == ["call_lost"]
    calls.say((0, Started()), (1, Started()), (2, Started())).enter()
    assert calls.told(Entered) == [Tell((0, 1, 2), Entered(1))]


def test_ranks_that_ended_outside_of_a_call_end_none() -> None:
    calls = started(2).arrive(0, 1, barrier=Barrier.COMPLETION)
    assert calls.say((0, LOST), (1, LOST)).orders == ()
    assert calls.say((0, IN_CALL)).orders == ()  # It had not heard that the call has succeeded.


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_call_in_which_a_rank_was_lost_goes_on_in_whatever_order_the_others_come_back(order: tuple[int, ...]) -> None:
    told = ((0, IN_CALL), (1, CallEnter(1, 1, 3, SETTINGS)), back(2, Stage.RUNNING, at=0))
    calls = Calls(3)
    for number in order:
        calls.say(told[number])
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
    assert sorted(calls.state.members) == [1, 2]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_call_that_had_begun_and_that_no_rank_is_in_any_more_begins_for_nobody(order: tuple[int, ...]) -> None:
    told = ((0, IN_CALL), (1, CallEnter(1, 1, 2, SETTINGS)))
    calls = Calls(2)
    for number in order:
        calls.say(told[number])
    assert [each.members for each in calls.told(CallRefused)] == [(1,)]
    assert [(each.call, each.stands) for each in calls.of(EndCall) if isinstance(each, EndCall)] == [(1, False)]


def test_who_had_not_heard_the_last_decision_joins_the_next_iteration() -> None:
    calls = Calls(3).say(back(0, Stage.RUNNING, at=5), back(2, Stage.RESTARTING, at=4), back(1, Stage.RUNNING, at=5))
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
    calls.say((0, FaultsReported(1, 5)), (1, FaultsReported(1, 5)), back(2, Stage.RESTARTING, at=4)).arrive(0, 1)
    assert calls.told(BeginIteration) == [Tell((0, 1, 2), BeginIteration(1, 6, 3, (), True))]
    assert calls.told(CallRefused) == []


def test_a_coordinator_without_memory_learns_of_a_commit_from_who_has_gone_on() -> None:
    calls = Calls(3).say(back(0, Stage.COMPLETING, at=4)).say((1, CallEnter(2, 1, 3, SETTINGS)))
    assert calls.told(Committed) == [Tell((0,), Committed(1, 4))]
    assert calls.say(back(2, Stage.COMPLETING, at=4)).told(Committed) == [Tell((2,), Committed(1, 4))]
    calls.say((0, CallEnter(2, 0, 3, SETTINGS)), (2, CallEnter(2, 2, 3, SETTINGS)))
    assert calls.told(Entered) == [Tell((1, 0, 2), Entered(2))]


def test_who_has_gone_on_may_be_the_first_to_come_back() -> None:
    calls = Calls(2).say((1, CallEnter(2, 1, 2, SETTINGS)))
    assert calls.say(back(0, Stage.COMPLETING, at=4)).orders == (Tell((0,), Committed(1, 4)),)
    assert calls.say((0, CallEnter(2, 0, 2, SETTINGS))).told(Entered) == [Tell((1, 0), Entered(2))]


def test_who_ends_while_the_call_is_rebuilt_is_not_waited_for() -> None:
    calls = Calls(3).say(back(0, Stage.RUNNING, at=4), back(2, Stage.RUNNING, at=4, rank=1))
    calls.say((1, Lost(Interruption.TERMINATED, "was killed", failed=True)))
    assert calls.said() == ["call_rebuilt", "iteration_interrupted"]
