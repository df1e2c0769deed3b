"""What is sent to the coordinator when, and how do its orders change the ranks?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec

from supervisor.core.cluster.cluster_messages import CallReport
from supervisor.core.node import local_call
from supervisor.core.node.local_call import (
    ClientJoined,
    ClientLeft,
    CondemnRank,
    CycleBegun,
    DeadlineReached,
    LeaderChanged,
    RankEnded,
    RankFaulted,
    RankStarted,
    SettleExcuses,
    UnwatchRank,
    WatchRank,
    WorkersEnding,
)
from supervisor.core.node.node_messages import RankSaid, TellCoordinator, TellRanks
from supervisor.core.orders import SettleCall, TellMembers
from supervisor.core.worker_messages import Excuse
from supervisor.core.wrapped_calls.call_messages import (
    EXCHANGE_NAMES_OPEN_MAX,
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallEnter,
    CallLeave,
    CallRefused,
    CallSettings,
    Committed,
    Entered,
    ExchangeValue,
    FaultsReported,
    FromRank,
    Interrupt,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    Stage,
    Started,
    Told,
    Word,
)
from tests.core.playbook import Playbook

JOB, CYCLE, NODE = "j", 3, "n1"
SETTINGS = CallSettings(heartbeat_timeout_s=30.0)


def enter(
    member: int, world_size: int, *, call: int = 1, stage: Stage = Stage.ENTERING, iteration: int = 0
) -> CallEnter:
    return CallEnter(call, member, world_size, SETTINGS, stage, iteration, member, world_size, True)


def told(*words: tuple[int, Word]) -> TellCoordinator:
    return TellCoordinator(JOB, CallReport(NODE, CYCLE, tuple(Told(member, word) for member, word in words)))


def said(local_rank: int, word: FromRank) -> RankSaid:
    return RankSaid(JOB, CYCLE, local_rank, word)


def playbook() -> Playbook[local_call.State]:
    return Playbook(local_call.step, local_call.initial_state(), job_id=JOB, cycle=CYCLE, node=NODE)


def begun(size: int = 2, *, first_rank: int = 0, world_size: int | None = None) -> Playbook[local_call.State]:
    """All local ranks are in iteration 0 of call 1, and have reported it."""
    world_size = world_size or size
    play = playbook()
    play >> CycleBegun(first_rank, size, world_size)
    for local_rank in range(size):
        play >> said(local_rank, enter(first_rank + local_rank, world_size))
    assert len(play.of(TellCoordinator)) == 1
    play >> TellMembers(0, tuple(range(world_size)), Entered(1))
    assert [each.local_rank for each in play.of(WatchRank)] == list(range(size))
    for local_rank in range(size):
        play >> said(local_rank, began(first_rank + local_rank, world_size))
    return play


def began(member: int, world_size: int, *, iteration: int = 0) -> IterationBegan:
    return IterationBegan(1, iteration, member, world_size, member, world_size)


def test_the_node_reports_when_its_last_rank_has_entered() -> None:
    play = playbook() >> CycleBegun(2, 2, 4)
    play >> said(1, enter(3, 4)) << ()
    play >> said(0, enter(2, 4)) << told((3, enter(3, 4)), (2, enter(2, 4)))


def test_what_waits_too_long_for_the_last_rank_leaves_without_it() -> None:
    play = playbook() >> CycleBegun(2, 3, 6)
    play >> said(1, enter(3, 6)) << ()
    play.at(2.0) >> said(0, enter(2, 6)) << ()
    assert local_call.next_deadline_s(play.state) == local_call.HOLD_S
    play.at(local_call.HOLD_S) >> DeadlineReached() << told((3, enter(3, 6)), (2, enter(2, 6)))
    assert local_call.next_deadline_s(play.state) is None
    play >> said(2, enter(4, 6)) << told((4, enter(4, 6)))


def test_an_overdue_rank_takes_the_messages_of_the_others_along() -> None:
    asks = msgspec.structs.replace(enter(2, 6), overdue=True)
    play = playbook() >> CycleBegun(2, 3, 6)
    play >> said(0, enter(2, 6)) >> said(1, enter(3, 6)) << ()
    play >> said(0, asks) << told((2, enter(2, 6)), (3, enter(3, 6)), (2, asks))
    play >> said(0, asks) << told((2, asks))
    for arrival in (
        BarrierArrive(1, 0, Barrier.COMPLETION, 0, False),
        BarrierArrive(1, 0, Barrier.ITERATION, 0, True),
        ExchangeValue(1, 0, "a", 0, "x"),
    ):
        asks = msgspec.structs.replace(arrival, overdue=True)
        begun(2) >> said(0, arrival) >> said(0, asks) << told((0, arrival), (0, asks))


def test_a_rank_whose_environment_was_changed_is_refused() -> None:
    play = playbook() >> CycleBegun(0, 2, 2)
    play >> said(0, enter(1, 2))
    (refusal,) = play.of(TellRanks)
    assert isinstance(refusal.order, CallRefused)
    assert "RANK is 1 of 2 in the environment and was 0 of 2 at the start" in refusal.order.reason
    play.lacks(TellCoordinator)


def test_what_all_say_is_told_once_and_a_fault_at_once_after_the_numbers() -> None:
    play = playbook() >> CycleBegun(0, 2, 2)
    play >> said(0, enter(0, 2)) >> said(1, enter(1, 2)) >> TellMembers(0, (0, 1), Entered(1))
    play >> said(0, began(0, 2)) << ()
    fault = RankFault(1, 0, 0, Interruption.EXCEPTION, "ValueError")
    play >> said(0, fault) << told((0, began(0, 2)), (0, fault))
    play >> said(1, began(1, 2)) << told((1, began(1, 2)))
    play >> said(1, FaultsReported(1, 0)) << told((1, FaultsReported(1, 0)))


def test_arrivals_are_told_together_but_the_first_return_of_an_active_rank_at_once() -> None:
    play = begun(3)
    for local_rank in (2, 0):
        play >> said(local_rank, BarrierArrive(1, 0, Barrier.COMPLETION, local_rank, True))
        expected = 1 if local_rank == 2 else 0
        assert len(play.of(TellCoordinator)) == expected
    play >> said(1, BarrierArrive(1, 0, Barrier.COMPLETION, 1, True))
    (report,) = play.of(TellCoordinator)
    assert [each.member for each in report.report.told] == [0, 1]


def test_values_are_told_by_name_when_the_last_rank_has_given_its_own() -> None:
    play = begun(2)
    play >> said(0, ExchangeValue(1, 0, "a", 0, "x")) >> said(0, ExchangeValue(1, 0, "b", 0, "x")) << ()
    (
        play
        >> said(1, ExchangeValue(1, 0, "b", 1, "y"))
        << told((0, ExchangeValue(1, 0, "b", 0, "x")), (1, ExchangeValue(1, 0, "b", 1, "y")))
    )


def test_a_flood_of_names_is_held_to_a_bound_and_the_rest_is_the_coordinators_to_judge() -> None:
    play = begun(2)
    for number in range(EXCHANGE_NAMES_OPEN_MAX):
        play >> said(0, ExchangeValue(1, 0, f"{number}", 0, "x")) << ()
    for number in range(EXCHANGE_NAMES_OPEN_MAX, 1000):
        (
            play
            >> said(0, ExchangeValue(1, 0, f"{number}", 0, "x"))
            << told((0, ExchangeValue(1, 0, f"{number}", 0, "x")))
        )
    assert len(play.state.waiting) <= EXCHANGE_NAMES_OPEN_MAX
    assert len(play.state.sent) <= 4


def test_a_value_for_the_iteration_that_is_about_to_begin_is_passed_on() -> None:
    play = begun(1) >> said(0, ExchangeValue(1, 1, "a", 0, "x"))
    play << told((0, ExchangeValue(1, 1, "a", 0, "x")))


def test_a_loss_is_told_at_once_and_completes_what_only_it_kept_waiting() -> None:
    play = begun(2) >> said(0, FaultsReported(1, 0)) << ()
    lost = Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True, in_call=1)
    play >> RankEnded(1, "was killed by SIGKILL", True)
    play << (told((1, lost), (0, FaultsReported(1, 0))), UnwatchRank(1))


def test_a_new_leader_hears_of_the_ranks_that_the_call_has_lost_until_it_ends_or_they_start_again() -> None:
    play = begun(3) >> RankEnded(1, "was killed by SIGKILL", True) >> RankEnded(2, "exited with code 3", True)
    first = Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True, in_call=1)
    other = Lost(Interruption.TERMINATED, "exited with code 3", failed=True, in_call=1)
    play >> LeaderChanged() << told((1, first), (2, other))
    play >> LeaderChanged(starting=(1,)) << told((2, other))
    play >> RankStarted(1)
    play >> LeaderChanged() << told((2, other))
    play >> SettleCall(0, 1, True, "call 1 succeeded")
    play >> LeaderChanged() << ()


def test_what_belongs_to_another_call_or_iteration_goes_nowhere() -> None:
    play = begun(1)
    for word in (
        FaultsReported(2, 0),
        FaultsReported(1, 1),
        RankFault(1, 3, 0, Interruption.EXCEPTION, ""),
        CallLeave(3, 0, Leaving.FAULT, ""),
    ):
        play >> said(0, word) << ()


def test_a_node_without_calls_says_nothing_of_its_ends() -> None:
    play = playbook() >> CycleBegun(0, 2, 2)
    play >> RankEnded(0, "exited with code 0", False)
    play.lacks(TellCoordinator)
    play >> said(1, enter(1, 2))
    (report,) = play.of(TellCoordinator)
    assert [(each.member, type(each.word)) for each in report.report.told] == [(0, Lost), (1, CallEnter)]


def test_who_comes_back_says_where_it_stands_at_once() -> None:
    play = begun(2) >> ClientLeft(0) >> ClientJoined(0)
    back = enter(0, 2, stage=Stage.COMPLETING)
    play >> said(0, back)
    play.has(told((0, back)))
    assert local_call.next_deadline_s(play.state) is None
    arrival = BarrierArrive(1, 0, Barrier.COMPLETION, 1, True)
    play >> said(1, arrival) << told((1, arrival))


def test_who_does_not_come_back_is_lost_and_its_process_condemned() -> None:
    play = begun(2).at(10.0) >> ClientLeft(1) << ()
    assert local_call.next_deadline_s(play.state) == 40.0
    play.at(40.0) >> DeadlineReached()
    text = "lost its connection and did not come back within 30 s"
    lost = Lost(Interruption.UNRESPONSIVE, text, failed=False, in_call=1)
    play << (told((1, lost)), UnwatchRank(1), CondemnRank(1))


def test_a_fault_that_the_supervisor_finds_is_a_report_too() -> None:
    play = begun(2) >> RankFaulted(1, Interruption.SOFT_TIMEOUT, "executed no Python code for 60.0 s")
    (report,) = play.of(TellCoordinator)
    assert [each.member for each in report.report.told] == [1]
    play >> said(0, FaultsReported(1, 0)) << told((0, FaultsReported(1, 0)))


def test_orders_reach_the_ranks_of_this_node_only() -> None:
    play = begun(2, first_rank=2, world_size=4) >> TellMembers(0, (0, 1), Interrupt(1, 0)) << ()
    play >> TellMembers(0, (1, 2, 3), Interrupt(1, 0)) << TellRanks(JOB, CYCLE, (0, 1), Interrupt(1, 0))


def test_a_decision_moves_the_ranks_to_the_next_iteration() -> None:
    play = begun(2) >> TellMembers(0, (0, 1), BeginIteration(1, 1, 2))
    assert [each.local_rank for each in play.of(WatchRank)] == [0, 1]
    play >> said(0, FaultsReported(1, 0)) << ()
    play >> said(0, began(0, 2, iteration=1)) >> said(1, began(1, 2, iteration=1))
    assert len(play.of(TellCoordinator)) == 1


# --- excuses -------------------------------------------------------------------------------------------------------


def excuses(play: Playbook[local_call.State], size: int = 2) -> list[Excuse]:
    return [local_call.excuse(play.state, local_rank) for local_rank in range(size)]


def test_ends_are_excused_from_the_first_iteration_to_the_commit() -> None:
    play = playbook() >> CycleBegun(0, 2, 2)
    play >> said(0, enter(0, 2)) >> said(1, enter(1, 2))
    assert excuses(play) == [Excuse.NONE, Excuse.NONE]
    play >> TellMembers(0, (0, 1), Entered(1))
    assert excuses(play) == [Excuse.OPEN, Excuse.OPEN]
    play >> said(1, CallLeave(1, 0, Leaving.FAULT, "SystemExit"))
    play >> TellMembers(0, (0,), Committed(1, 0)) >> SettleCall(0, 1, True, "call 1 succeeded")
    play.has(SettleExcuses(True, "call 1 succeeded"))
    assert excuses(play) == [Excuse.NONE, Excuse.STANDS]


def test_when_nobody_is_left_no_end_is_excused() -> None:
    play = begun(2) >> RankEnded(0, "was killed by SIGKILL", True)
    play >> said(1, CallLeave(1, 0, Leaving.FAULT, "RestartAbort"))
    play >> SettleCall(0, 1, False, "no rank is left")
    play.has(SettleExcuses(False, "no rank is left"))
    assert excuses(play) == [Excuse.NONE, Excuse.NONE]


def test_who_waits_for_its_neighbours_when_the_call_ends_is_refused() -> None:
    play = playbook() >> CycleBegun(0, 2, 4)
    play >> said(0, enter(0, 4)) >> SettleCall(0, 1, False, "cannot begin call 1")
    play.has(TellRanks(JOB, CYCLE, (0,), CallRefused(1, "cannot begin call 1")))
    play >> said(1, enter(1, 4)) << TellRanks(JOB, CYCLE, (1,), CallRefused(1, "cannot begin call 1"))


def test_a_rank_of_a_later_call_does_not_end_with_an_earlier_one() -> None:
    """It comes back while a supervisor without memory takes the others' call for the present one."""
    play = playbook() >> CycleBegun(0, 1, 2) >> said(0, enter(0, 2, call=2, stage=Stage.COMPLETING, iteration=1))
    play >> SettleCall(0, 1, False, "cannot begin call 1")
    fault = RankFault(2, 1, 0, Interruption.EXCEPTION, "why")
    play >> said(0, fault) << told((0, fault))


def test_a_new_process_is_excused_enters_at_once_and_is_a_member_from_then_on() -> None:
    play = begun(2) >> RankEnded(1, "was killed by SIGKILL", True)
    play >> RankStarted(1) << told((1, Started()))
    assert excuses(play)[1] is Excuse.OPEN
    play >> said(1, enter(1, 2)) << told((1, enter(1, 2)))
    play >> TellMembers(0, (1,), Entered(1, 1, (BeginIteration(1, 1, 2),)))
    play >> said(1, FaultsReported(1, 1)) << ()
    play >> TellMembers(0, (0,), BeginIteration(1, 1, 2)) >> said(0, FaultsReported(1, 1))
    assert len(play.of(TellCoordinator)) == 1


def test_a_new_process_that_is_refused_stays_excused() -> None:
    play = begun(2) >> RankEnded(1, "was killed by SIGKILL", True) >> RankStarted(1)
    play >> said(1, enter(1, 2)) >> TellMembers(0, (1,), CallRefused(1, "the others have gone on"))
    assert excuses(play)[1] is Excuse.OPEN


def test_a_rank_that_is_refused_in_the_function_is_watched_until_it_has_left_or_ended() -> None:
    play = begun(2) >> TellMembers(0, (0, 1), CallRefused(1, "cannot go on")) >> SettleCall(0, 1, False, "cannot go on")
    play.lacks(UnwatchRank)
    play >> said(0, CallLeave(1, 0, Leaving.FAULT, "cannot go on")) << UnwatchRank(0)
    play >> RankEnded(1, "was killed by SIGKILL", True)
    play.has(UnwatchRank(1))


def test_nothing_is_news_once_the_workers_are_being_ended() -> None:
    play = begun(2) >> WorkersEnding() << ()
    play >> RankEnded(0, "was killed by SIGTERM", True) << ()
    play >> said(1, FaultsReported(1, 0)) << ()
    play >> TellMembers(0, (0, 1), Interrupt(1, 0)) << ()


def test_nobody_waits_at_the_entry_of_a_call_for_a_process_that_stands_in() -> None:
    play = begun(3)
    play >> RankEnded(1, "was killed by SIGKILL", failed=True)
    play >> RankStarted(1)
    play >> said(1, enter(1, 3))
    assert play.of(TellCoordinator) == [told((1, enter(1, 3)))]
    play >> TellMembers(0, (0, 2, 1), Committed(1, 0))
    assert [local_call.excuse(play.state, local_rank) for local_rank in (0, 1)] == [Excuse.NONE, Excuse.OPEN]
    play >> said(0, enter(0, 3, call=2))
    assert play.of(TellCoordinator) == []
    play >> said(2, enter(2, 3, call=2))
    assert play.of(TellCoordinator) == [told((0, enter(0, 3, call=2)), (2, enter(2, 3, call=2)))]
    play >> said(1, enter(1, 3, call=2))
    assert play.of(TellCoordinator) == [told((1, enter(1, 3, call=2)))]
