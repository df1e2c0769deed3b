"""What does a rank report of itself, and when, whatever happens to its connection? Without any connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from holdfast_wire.call_bounds import REASON_CHARACTERS_MAX
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder
from holdfast_wire.v1 import worker_pb2 as wire

from worker_client.call_protocol import (
    BeginIteration,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    FaultRecord,
    Interrupt,
    Leaving,
    RanksMissing,
    Restart,
)
from worker_client.inprocess.coordinating import rank_call_state
from worker_client.inprocess.coordinating.coordination import Coordination, Superseded
from worker_client.inprocess.exception import InternalError, RestartAbort
from worker_client.inprocess.state import State
from worker_client.inprocess.store import BarrierTimeout

CALL = 4
SOON = timedelta(seconds=20)
NOW = timedelta(milliseconds=1)
FAULTS = (FaultRecord(1, "EXCEPTION", "why"),)


def asks(frame: wire.WorkerFrame) -> bool:
    return frame.call_enter.overdue or frame.barrier_arrive.overdue or frame.exchange_value.overdue


class Rank:
    """Rank 1 of 3 with its coordination and its messages. `main` runs what blocks its main thread."""

    def __init__(self, main: ThreadPoolExecutor) -> None:
        self.frames: list[wire.WorkerFrame] = []
        self.main = main
        self.state = State(1, 3, active_rank=1, active_world_size=3)
        self.spoke = threading.Condition()
        self.coordination = Coordination(CALL, self.state, CallSettings(*[timedelta(seconds=1)] * 7), self._say)
        self.coordination.connected()

    def _say(self, frame: bytes) -> None:
        with self.spoke:
            (payload,) = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX).feed(frame)
            self.frames.append(wire.WorkerFrame.FromString(payload))
            self.spoke.notify_all()

    def said(self) -> list[str]:
        return [frame.WhichOneof("body") or "" for frame in self.frames]

    def wait_said(self, last: str) -> None:
        with self.spoke:
            assert self.spoke.wait_for(lambda: self.said()[-1:] == [last], SOON.total_seconds()), self.said()

    def wait_overdue(self) -> None:
        """Waits for the question which ranks are missing."""
        with self.spoke:
            assert self.spoke.wait_for(lambda: any(map(asks, self.frames)), SOON.total_seconds()), self.said()

    def enter(self) -> None:
        entering = self.main.submit(self.coordination.enter, SOON)
        self.wait_said("call_enter")
        self.coordination.heard(Entered(CALL, 0, (), ()))
        assert entering.result() == Entered(CALL, 0, (), ())
        self.coordination.begin(self.state)

    def reconnect(self) -> list[str]:
        """Returns what it sends to a supervisor that knows nothing."""
        self.coordination.disconnected()
        self.frames.clear()
        self.coordination.connected()
        return self.said()


@pytest.fixture
def rank() -> Iterator[Rank]:
    with ThreadPoolExecutor(max_workers=1) as main:
        yield Rank(main)


def stage(rank: Rank) -> str:
    return wire.CallEnter.Stage.Name(rank.frames[0].call_enter.stage)


def failed(future: Future[Any]) -> BaseException | None:
    return future.exception(SOON.total_seconds())


def test_the_entry_says_who_the_rank_is(rank: Rank):
    assert rank.said() == []  # connected, but not at the barrier yet
    rank.enter()
    entered = rank.frames[0].call_enter
    assert (entered.call, entered.initial_rank, entered.initial_world_size) == (CALL, 1, 3)
    assert stage(rank) == "ENTERING"
    began = rank.frames[1].iteration_began
    assert (began.call, began.iteration, began.rank, began.world_size, began.active_rank) == (CALL, 0, 1, 3, 1)


def test_missing_ranks_are_a_barrier_timeout(rank: Rank):
    with pytest.raises(BarrierTimeout, match=r"3 ranks within .*: some ranks have not called it; .*holdfast stacks"):
        rank.coordination.enter(NOW)
    rank.enter()
    with pytest.raises(BarrierTimeout):
        rank.coordination.complete(NOW)
    with pytest.raises(BarrierTimeout):
        rank.coordination.arrive(NOW)
    assert not rank.coordination.wait_for_order(NOW)


@pytest.mark.parametrize(
    ("ranks", "total", "named"),
    [
        ((2,), 1, "rank 2 has"),
        ((0, 2), 2, "ranks 0, 2 have"),
        ((3, 7, 9, 11), 44, "ranks 3, 7, 9, 11 and 40 more have"),
    ],
)
def test_a_barrier_timeout_names_the_ranks_that_are_missing(rank: Rank, ranks: tuple[int, ...], total: int, named: str):
    entering = rank.main.submit(rank.coordination.enter, NOW)
    rank.wait_overdue()
    rank.coordination.heard(RanksMissing(CALL, ranks, total))
    assert f"3 ranks within {NOW}: {named} not called it; call it equally often" in str(failed(entering))


def test_each_wait_of_a_call_names_the_ranks_that_are_missing(rank: Rank):
    rank.enter()
    waits: list[tuple[Callable[[], object], str]] = [
        (lambda: rank.coordination.exchange("key", "a", rank=1, timeout=NOW), "'key': ranks 0, 2 gave no value"),
        (lambda: rank.coordination.complete(NOW), "iteration 0: ranks 0, 2 did not return from the function"),
        (lambda: rank.coordination.arrive(NOW), "after iteration 0: ranks 0, 2 did not end theirs"),
    ]
    for wait, text in waits:
        rank.frames.clear()
        waiting = rank.main.submit(wait)
        rank.wait_overdue()
        rank.coordination.heard(RanksMissing(CALL, (0, 2), 2))
        error = failed(waiting)
        assert isinstance(error, BarrierTimeout)
        assert f"{text} within {NOW}; see holdfast stacks" in str(error)


def test_what_comes_while_the_missing_ranks_are_asked_for_counts(rank: Rank):
    entering = rank.main.submit(rank.coordination.enter, NOW)
    rank.wait_overdue()
    rank.coordination.heard(Entered(CALL, 0, (), ()))
    assert entering.result(SOON.total_seconds()) == Entered(CALL, 0, (), ())


def test_an_interrupt_is_answered_at_once_whatever_the_main_thread_does(rank: Rank):
    rank.enter()
    rank.coordination.heard(Interrupt(CALL, 0))
    assert rank.said()[-1] == "faults_reported"
    rank.coordination.heard(Interrupt(CALL - 1, 0))
    assert rank.said().count("faults_reported") == 1


def test_a_fault_is_told_once_and_not_when_the_restart_is_ordered_already(rank: Rank):
    rank.enter()
    assert rank.coordination.fail("EXCEPTION", "x" * 5000)
    assert rank.coordination.fail("EXCEPTION", "again")
    (fault,) = [frame.rank_fault for frame in rank.frames if frame.HasField("rank_fault")]
    assert (fault.iteration, fault.rank, len(fault.reason)) == (0, 1, REASON_CHARACTERS_MAX)
    rank.coordination.heard(Restart(CALL, 0, FAULTS))
    assert rank.coordination.wait_for_order(NOW)
    assert not rank.coordination.fail("EXCEPTION", "because of the abort")


def test_another_thread_can_interrupt_the_function_and_nothing_else(rank: Rank):
    assert not rank.coordination.interrupt("EXCEPTION", "not entered yet")
    rank.enter()
    assert rank.coordination.interrupt("EXCEPTION", "a thread found it")
    assert rank.coordination.interrupt("EXCEPTION", "again")
    (fault,) = [frame.rank_fault for frame in rank.frames if frame.HasField("rank_fault")]
    assert (fault.iteration, fault.rank, fault.reason) == (0, 1, "a thread found it")
    assert rank.reconnect()[-1] == "rank_fault"
    rank.coordination.heard(Restart(CALL, 0, FAULTS))
    assert rank.coordination.wait_for_order(NOW)
    assert not rank.coordination.interrupt("EXCEPTION", "between two iterations")


def test_a_signal_handler_in_the_middle_of_a_change_is_refused(rank: Rank, monkeypatch: pytest.MonkeyPatch):
    rank.enter()
    change, answers = rank_call_state.step, list[bool]()

    def interrupted(state: rank_call_state.State, event: rank_call_state.Event) -> Any:  # noqa: ANN401  # as step has it
        changed = change(state, event)
        answers.append(rank.coordination.interrupt("EXCEPTION", "this change would undo it"))
        return changed

    monkeypatch.setattr(rank_call_state, "step", interrupted)
    assert failed(rank.main.submit(rank.coordination.fail, "EXCEPTION", "by intention")) is None
    assert answers == [False, False]


def test_a_restart_ends_in_the_next_iteration(rank: Rank):
    rank.enter()
    completing = rank.main.submit(rank.coordination.complete, SOON)
    rank.wait_said("barrier_arrive")
    rank.coordination.heard(Restart(CALL, 0, FAULTS))
    assert completing.result() is False
    arriving = rank.main.submit(rank.coordination.arrive, SOON)
    rank.wait_said("barrier_arrive")
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset({0})))
    assert arriving.result().terminated_ranks == {0}
    rank.coordination.assign(1)
    rank.coordination.heard(Restart(CALL, 0, FAULTS))  # of the previous iteration
    rank.coordination.begin(State(0, 2, active_rank=0, active_world_size=2))
    assert not rank.coordination.is_interrupted()
    completing = rank.main.submit(rank.coordination.complete, SOON)
    rank.wait_said("barrier_arrive")
    assert rank.frames[-1].barrier_arrive.rank == 0
    rank.coordination.heard(Committed(CALL, 1))
    assert completing.result() is True


def test_a_restart_ordered_during_rank_assignment_waits_for_its_end(rank: Rank):
    rank.enter()
    rank.coordination.heard(Restart(CALL, 0, FAULTS))
    assert rank.coordination.next_restart(-1) == Restart(CALL, 0, FAULTS)
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset()))
    rank.coordination.arrive(SOON)
    rank.coordination.assign(1)
    rank.coordination.heard(Interrupt(CALL, 1))
    rank.coordination.heard(Restart(CALL, 1, FAULTS))
    waiting = rank.main.submit(rank.coordination.next_restart, 0)
    assert not waiting.done()
    rank.coordination.begin(rank.state)
    assert waiting.result() == Restart(CALL, 1, FAULTS)
    assert rank.coordination.is_interrupted()


def test_values_are_exchanged_under_a_name_of_the_iteration(rank: Rank):
    rank.enter()
    rank.coordination.assign(1)

    def exchange(name: str) -> dict[int, str]:
        return rank.coordination.exchange(name, "mine", rank=1, timeout=SOON)

    exchanging = rank.main.submit(exchange, "a")
    rank.wait_said("exchange_value")
    rank.coordination.heard(Exchanged(CALL, 1, "b", {1: "other"}))
    rank.coordination.heard(Exchanged(CALL, 1, "a", {0: "theirs", 1: "mine"}))
    assert exchanging.result() == {0: "theirs", 1: "mine"}
    assert exchange("b") == {1: "other"}  # it came before the rank asked
    with pytest.raises(BarrierTimeout, match="'c'"):
        rank.coordination.exchange("c", "mine", rank=1, timeout=NOW)
    with pytest.raises(ValueError, match="cannot exchange"):
        rank.coordination.exchange("d", "x" * 40_000, rank=1, timeout=NOW)


def test_a_newer_decision_ends_the_wait_for_values_of_the_one_before(rank: Rank):
    """The others have begun that iteration and lost their coordinator: no value comes any more."""
    rank.enter()
    first, newer = BeginIteration(CALL, 1, 3, frozenset()), BeginIteration(CALL, 2, 3, frozenset(), anew=True)
    rank.coordination.heard(first)
    assert rank.coordination.arrive(SOON) == first
    rank.coordination.assign(1)
    exchanging = rank.main.submit(lambda: rank.coordination.exchange("a", "mine", rank=1, timeout=SOON))
    rank.wait_said("exchange_value")
    rank.coordination.heard(newer)
    error = failed(exchanging)
    assert isinstance(error, Superseded)
    assert error.plan == newer
    rank.coordination.assign(2)
    rank.coordination.begin(rank.state)
    assert rank.frames[-1].iteration_began.iteration == 2


def test_a_newer_decision_is_followed_though_all_values_are_there(rank: Rank):
    rank.enter()
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset()))
    rank.coordination.arrive(SOON)
    rank.coordination.assign(1)
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset({2})))
    with pytest.raises(Superseded):
        rank.coordination.begin(rank.state)
    assert "iteration_began" not in rank.said()[2:]


def test_no_value_is_given_for_a_decision_that_was_replaced(rank: Rank):
    rank.enter()
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset()))
    rank.coordination.arrive(SOON)
    rank.coordination.assign(1)
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset({2})))
    with pytest.raises(Superseded):
        rank.coordination.exchange("a", "mine", rank=1, timeout=SOON)
    assert "exchange_value" not in rank.said()


def test_one_who_replaces_a_lost_rank_knows_what_was_exchanged(rank: Rank):
    history = (BeginIteration(CALL, 1, 3, frozenset()),)
    entered = Entered(CALL, 1, history, (Exchanged(CALL, 0, "a", {0: "x"}),))
    rank.coordination.heard(entered)
    assert rank.coordination.enter(SOON) == entered
    assert rank.coordination.exchange("a", "mine", rank=1, timeout=NOW) == {0: "x"}


def test_one_who_comes_late_waits_for_the_next_iteration_longer_than_the_barrier_allows(rank: Rank):
    rank.coordination.heard(CallUnderway(CALL))
    entering = rank.main.submit(rank.coordination.enter, NOW)
    with pytest.raises(TimeoutError):
        entering.result(0.2)
    entered = Entered(CALL, 3, (BeginIteration(CALL, 3, 3, frozenset(), anew=True),), ())
    rank.coordination.heard(entered)
    assert entering.result(SOON.total_seconds()) == entered


def test_one_who_comes_late_is_released_when_the_call_has_succeeded_without_it(rank: Rank):
    assert rank.coordination.needs_supervisor()
    entering = rank.main.submit(rank.coordination.enter, SOON)
    rank.wait_said("call_enter")
    rank.coordination.heard(CallUnderway(CALL))
    rank.coordination.heard(Committed(CALL, 2))
    assert entering.result(SOON.total_seconds()) is None
    assert not rank.coordination.needs_supervisor()


def test_that_one_is_late_has_to_be_said_anew_by_each_supervisor(rank: Rank):
    entering = rank.main.submit(rank.coordination.enter, NOW * 200)
    rank.wait_said("call_enter")
    rank.coordination.heard(CallUnderway(CALL))
    assert (rank.reconnect(), stage(rank)) == (["call_enter"], "ENTERING")
    assert isinstance(entering.exception(SOON.total_seconds()), BarrierTimeout)


def test_a_supervisor_that_knows_nothing_is_told_where_the_rank_stands(rank: Rank):
    entering = rank.main.submit(rank.coordination.enter, SOON)
    rank.wait_said("call_enter")
    assert (rank.reconnect(), stage(rank)) == (["call_enter"], "ENTERING")
    rank.coordination.heard(Entered(CALL, 0, (), ()))
    entering.result()
    rank.coordination.begin(rank.state)
    assert (rank.reconnect(), stage(rank)) == (["call_enter", "iteration_began"], "RUNNING")
    rank.coordination.heard(Interrupt(CALL, 0))
    assert rank.reconnect() == ["call_enter", "iteration_began", "faults_reported"]
    completing = rank.main.submit(rank.coordination.complete, SOON)
    rank.wait_said("barrier_arrive")
    assert rank.reconnect()[-2:] == ["faults_reported", "barrier_arrive"]
    assert stage(rank) == "COMPLETING"
    rank.coordination.heard(Restart(CALL, 0, FAULTS))
    completing.result()
    assert rank.coordination.wait_for_order(NOW)
    rank.reconnect()
    assert stage(rank) == "UNWINDING"
    arriving = rank.main.submit(rank.coordination.arrive, SOON)
    rank.wait_said("barrier_arrive")
    assert (rank.reconnect(), stage(rank)) == (["call_enter", "barrier_arrive"], "RESTARTING")
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset()))
    arriving.result()
    rank.coordination.assign(1)
    exchanging = rank.main.submit(lambda: rank.coordination.exchange("a", "mine", rank=1, timeout=SOON))
    rank.wait_said("exchange_value")
    assert "exchange_value" in rank.reconnect()
    rank.coordination.heard(Exchanged(CALL, 1, "a", {}))
    exchanging.result()
    rank.coordination.leave(Leaving.FAULT, "why")
    assert rank.reconnect() == ["call_leave"]


def test_nothing_is_said_while_nobody_listens(rank: Rank):
    rank.enter()
    rank.coordination.disconnected()
    rank.frames.clear()
    assert rank.coordination.fail("EXCEPTION", "why")
    rank.coordination.heard(Interrupt(CALL, 0))
    assert rank.said() == []
    rank.coordination.connected()
    assert rank.said() == ["call_enter", "iteration_began", "rank_fault", "faults_reported"]


def test_one_who_leaves_waits_until_the_others_go_on(rank: Rank):
    rank.enter()
    rank.coordination.leave(Leaving.FAULT, "\udcff bad text")
    rank.coordination.leave(Leaving.DONE, "")
    (leave,) = [frame.call_leave for frame in rank.frames if frame.HasField("call_leave")]
    assert (leave.iteration, leave.why, leave.reason) == (0, wire.CallLeave.FAULT, "? bad text")
    assert rank.coordination.next_restart(-1) is None
    waiting = rank.main.submit(rank.coordination.wait_for_others, SOON)
    rank.coordination.heard(BeginIteration(CALL, 1, 3, frozenset({1})))
    waiting.result()


def test_an_unfit_one_that_is_to_be_replaced_waits_no_longer(rank: Rank):
    rank.enter()
    rank.coordination.leave(Leaving.FAULT, "why", is_unfit=True)
    (leave,) = [frame.call_leave for frame in rank.frames if frame.HasField("call_leave")]
    assert leave.unfit
    waiting = rank.main.submit(rank.coordination.wait_for_others, SOON)
    rank.coordination.heard(CallRefused(CALL, "cannot go on: rank 1 is unfit"))
    with pytest.raises(InternalError):
        waiting.result()


@pytest.mark.parametrize(("given_up", "kind"), [(False, InternalError), (True, RestartAbort)])
def test_a_refusal_is_raised_wherever_the_rank_waits(rank: Rank, given_up: bool, kind: type[BaseException]):
    """A call that failed too often ends as one that RetryController ends."""
    rank.enter()
    completing = rank.main.submit(rank.coordination.complete, SOON)
    rank.wait_said("barrier_arrive")
    rank.coordination.heard(CallRefused(CALL, "cannot go on: by intention", given_up))
    error = failed(completing)  # pyright: ignore[reportArgumentType]
    assert isinstance(error, kind)
    assert "by intention" in str(error)
    with pytest.raises(kind):
        rank.coordination.arrive(SOON)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(0, "TERMINATED"), (1, "EXCEPTION")], True),
        ([(0, "EXCEPTION"), (2, "UNRESPONSIVE"), (1, "EXCEPTION")], True),
        ([(0, "TERMINATED")], True),  # The own fault came too late for the order.
        ([(1, "EXCEPTION"), (0, "TERMINATED")], False),  # It may have caused the death.
        ([(1, "TERMINATED")], False),
        ([(0, "EXCEPTION"), (1, "EXCEPTION")], False),
    ],
)
def test_who_has_lost_a_peer_knows_it_from_the_order(rank: Rank, told: list[tuple[int, str]], expected: bool):
    rank.enter()
    assert rank.coordination.fail("EXCEPTION", "connection closed by peer")
    rank.coordination.heard(Restart(CALL, 0, tuple(FaultRecord(*each, "") for each in told)))
    assert rank.coordination.has_lost_peers() is expected


def test_a_refusal_ends_the_function_but_not_a_wait_by_the_monitor_thread(rank: Rank):
    rank.enter()
    waiting = rank.main.submit(rank.coordination.next_restart, -1)
    rank.coordination.heard(CallRefused(CALL, "cannot go on: by intention"))
    assert waiting.result() == Restart(CALL, 0, ())
    assert rank.coordination.is_interrupted()
    waiting = rank.main.submit(rank.coordination.next_restart, 0)
    with pytest.raises(InternalError):
        rank.coordination.wait_for_order(SOON)
    assert not waiting.done()
    rank.coordination.close()
    assert waiting.result() is None


def test_closing_ends_the_wait_of_the_monitor_thread(rank: Rank):
    waiting = rank.main.submit(rank.coordination.next_restart, -1)
    rank.coordination.close()
    assert waiting.result() is None
