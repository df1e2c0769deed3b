"""Does a rank send what it must, once and again at each connection, in any order of events?"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from worker_client.call_protocol import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallLeave,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultRecord,
    FaultsReported,
    Interrupt,
    IterationBegan,
    Leaving,
    RankFault,
    RanksMissing,
    Restart,
    Stage,
    Word,
)
from worker_client.inprocess.coordinating.rank_call_state import (
    Answer,
    AssignmentBegun,
    CallPhase,
    Event,
    Link,
    Move,
    Outcome,
    State,
    WaitOverdue,
    step,
)

CALL = 1
FAULTS = (FaultRecord(2, "EXCEPTION", "why"),)
ENTRY = CallEnter(CALL, 1, 3, CallSettings(*[timedelta(seconds=1)] * 7))
BEGUN = IterationBegan(CALL, 0, 1, 3, 1, 3)
BEGUN_AGAIN = BEGUN._replace(iteration=1)
FAULT = RankFault(CALL, 0, 1, "EXCEPTION", "mine")
VALUE = ExchangeValue(CALL, 1, "key", 1, "mine")
LEFT = CallLeave(CALL, 1, Leaving.FAULT, "over")
ENTERED = Entered(CALL, 0, (), ())
INSIDE: list[Event] = [Link.CONNECTED, Move.ENTRY_ASKED, ENTERED, AssignmentBegun(0), BEGUN]


def after(*events: Event, state: State | None = None) -> State:
    return reduce(lambda state, event: step(state, event)[0], events, State(ENTRY, 1, 3) if state is None else state)


def said(*events: Event) -> list[tuple[str, Word]]:
    """Returns all messages, each with the name of its kind: two kinds may have equal fields."""
    state, words = State(ENTRY, 1, 3), list[Word]()
    for event in events:
        state, new = step(state, event)
        words += new
    return [(type(word).__name__, word) for word in words]


def kinds(state: State) -> list[str]:
    """Returns the kinds of what a supervisor that knows nothing gets."""
    return [type(word).__name__ for word in step(state, Link.CONNECTED)[1]]


# --- what stands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "phase", "frames"),
    [
        ([], CallPhase.OUTSIDE, []),
        ([Move.ENTRY_ASKED], CallPhase.ENTERING, ["CallEnter"]),
        ([Move.ENTRY_ASKED, ENTERED, AssignmentBegun(0), VALUE], CallPhase.ENTERING, ["CallEnter", "ExchangeValue"]),
        ([*INSIDE], CallPhase.RUNNING, ["CallEnter", "IterationBegan"]),
        ([*INSIDE, Interrupt(CALL, 0)], CallPhase.RUNNING, ["CallEnter", "IterationBegan", "FaultsReported"]),
        ([*INSIDE, FAULT], CallPhase.RUNNING, ["CallEnter", "IterationBegan", "RankFault"]),
        ([*INSIDE, Move.FUNCTION_LEFT, FAULT], CallPhase.UNWINDING, ["CallEnter", "IterationBegan", "RankFault"]),
        ([*INSIDE, Move.COMPLETION_REACHED], CallPhase.COMPLETING, ["CallEnter", "IterationBegan", "BarrierArrive"]),
        ([*INSIDE, FAULT, Move.RESTART_REACHED], CallPhase.RESTARTING, ["CallEnter", "BarrierArrive"]),
        (
            [*INSIDE, Move.RESTART_REACHED, AssignmentBegun(1), VALUE],
            CallPhase.RESTARTING,
            ["CallEnter", "ExchangeValue", "BarrierArrive"],
        ),
        (
            [
                *INSIDE,
                Move.RESTART_REACHED,
                AssignmentBegun(1),
                VALUE,
                BEGUN_AGAIN,
            ],
            CallPhase.RUNNING,
            ["CallEnter", "ExchangeValue", "IterationBegan"],
        ),
        ([*INSIDE, LEFT], CallPhase.LEFT, ["CallLeave"]),
    ],
)
def test_what_applies_is_reported_again_at_each_connection(events: list[Event], phase: CallPhase, frames: list[str]):
    state = after(*events)
    assert state.phase is phase
    assert kinds(state) == frames
    assert kinds(after(Link.CONNECTED, state=state)) == frames


def test_a_rank_that_reports_its_fault_again_is_not_taken_for_one_with_an_unknown_fault():
    """From UNWINDING, a supervisor that knows nothing infers one, and the sentence of the real one would be lost."""
    failed, ordered = [*INSIDE, Move.FUNCTION_LEFT, FAULT], [*INSIDE, Restart(CALL, 0, FAULTS), Move.FUNCTION_LEFT]
    for events, stage in ((failed, Stage.RUNNING), (ordered, Stage.UNWINDING)):
        entry = step(after(*events), Link.CONNECTED)[1][0]
        assert isinstance(entry, CallEnter)
        assert entry.stage is stage


def test_each_step_is_said_as_what_the_rank_is():
    assert said(*INSIDE, FAULT, Interrupt(CALL, 0), Move.RESTART_REACHED, AssignmentBegun(1), VALUE, LEFT) == [
        ("CallEnter", ENTRY._replace(stage=Stage.ENTERING, rank=1, world_size=3)),
        ("IterationBegan", BEGUN),
        ("RankFault", FAULT),
        ("FaultsReported", FaultsReported(CALL, 0)),
        ("BarrierArrive", BarrierArrive(CALL, 0, Barrier.ITERATION, 1, active=True)),
        ("ExchangeValue", VALUE),
        ("CallLeave", LEFT),
    ]


# --- entry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "admission"),
    [
        ([], Answer.NONE),
        ([CallUnderway(CALL)], Answer.LATE),
        ([CallUnderway(CALL), Link.CONNECTED], Answer.NONE),
        ([CallUnderway(CALL), ENTERED], ENTERED),
        ([ENTERED, CallUnderway(CALL)], ENTERED),
        ([ENTERED, Committed(CALL, 0)], ENTERED),
        ([CallUnderway(CALL), Committed(CALL, 7)], Answer.OVER),
        ([Committed(CALL, 7), ENTERED], Answer.OVER),
        ([Committed(CALL, 7), CallRefused(CALL, "why")], Answer.OVER),
        ([CallRefused(CALL, "why"), ENTERED], CallRefused(CALL, "why")),
        ([ENTERED, CallRefused(CALL, "why")], CallRefused(CALL, "why")),
    ],
)
def test_the_last_answer_counts_unless_it_was_final(events: list[Event], admission: object):
    assert after(*events).admission == admission


def test_what_was_exchanged_before_is_known_at_the_entry_and_forgotten_after_it():
    exchanged = Exchanged(CALL, 0, "key", {0: "a"})
    entered = Entered(CALL, 0, (), (exchanged,))
    assert after(entered).exchanged == {(0, "key"): {0: "a"}}
    assert after(*INSIDE, entered).exchanged == {}
    assert after(*INSIDE, Exchanged(CALL, 1, "key", {0: "b"})).exchanged == {(1, "key"): {0: "b"}}


def test_a_coordinator_that_decides_the_iteration_again_gets_the_values_again():
    """It knows no values, and the ranks wait for each other's."""
    decided = BeginIteration(CALL, 1, 3, frozenset())
    assigning: list[Event] = [*INSIDE, Move.RESTART_REACHED, decided, AssignmentBegun(1)]
    values = [VALUE._replace(name=name) for name in ("first", "second", "third")]
    assert step(after(*assigning, *values), decided)[1] == (*values[1:],), "one that others wait for, and its own"
    assert step(after(*assigning, *values, AssignmentBegun(2)), decided)[1] == ()
    first = VALUE._replace(iteration=0)
    entering: list[Event] = [Link.CONNECTED, Move.ENTRY_ASKED, ENTERED, AssignmentBegun(0), first]
    assert step(after(*entering), ENTERED)[1] == (first,)
    assert step(after(*entering, BEGUN), ENTERED)[1] == ()


def test_another_decision_replaces_the_one_that_is_followed_and_what_was_exchanged_for_it():
    decided, told = BeginIteration(CALL, 1, 3, frozenset()), Exchanged(CALL, 1, "first", {0: "a"})
    assigning = after(*INSIDE, Move.RESTART_REACHED, decided, AssignmentBegun(1), told, VALUE)
    for newer in (decided._replace(iteration=2), decided._replace(anew=True)):
        state, words = step(assigning, newer)
        assert (state.plan, state.exchanged, words) == (newer, {}, ())
        assert "ExchangeValue" not in kinds(state), "it may be wrong under the newer one"
        assert step(state, newer)[1] == ()
    value = VALUE._replace(iteration=0)
    joining = after(Link.CONNECTED, Move.ENTRY_ASKED, ENTERED, AssignmentBegun(0), told._replace(iteration=0), value)
    entered = Entered(CALL, 2, (decided._replace(iteration=2, anew=True),), ())
    state, words = step(joining, entered)
    assert (state.plan, state.exchanged, words) == (entered, {}, ())
    assert kinds(state) == ["CallEnter"]


# --- an iteration's outcome -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "outcome", "is_interrupted"),
    [
        ([], Outcome.OPEN, False),
        ([Interrupt(CALL, 0)], Outcome.OPEN, True),
        ([CallCompleted(CALL, 0)], Outcome.COMPLETED, False),
        ([Interrupt(CALL, 0), CallCompleted(CALL, 0)], Outcome.COMPLETED, True),
        ([Restart(CALL, 0, FAULTS), CallCompleted(CALL, 0)], Outcome.RESTART, True),
        ([Restart(CALL, 0, FAULTS), Committed(CALL, 0)], Outcome.RESTART, True),
        ([Committed(CALL, 0), Restart(CALL, 0, FAULTS)], Outcome.COMMITTED, False),
        ([Restart(CALL, 1, FAULTS)], Outcome.OPEN, False),
    ],
)
def test_what_becomes_of_an_iteration(events: list[Event], outcome: Outcome, is_interrupted: bool):
    state = after(*INSIDE, *events)
    assert (state.now.outcome, state.is_interrupted) == (outcome, is_interrupted)
    is_ordered = outcome is Outcome.RESTART
    assert state.restart_after(-1) == (Restart(CALL, 0, FAULTS) if is_ordered else None)
    assert state.restart_after(0) is None


def test_the_next_iteration_may_be_interrupted_before_this_rank_has_begun_it():
    decided = BeginIteration(CALL, 1, 3, frozenset())
    early = after(*INSIDE, Move.RESTART_REACHED, decided, AssignmentBegun(1), Restart(CALL, 1, FAULTS))
    assert early.restart_after(0) is None
    begun = after(BEGUN_AGAIN, state=early)
    assert begun.restart_after(0) == Restart(CALL, 1, FAULTS)
    assert begun.decided is None


def test_an_overdue_wait_repeats_what_the_others_have_not_sent_and_keeps_the_answer():
    asked, answer = WaitOverdue(), RanksMissing(CALL, (0, 2), 2)
    entry = ENTRY._replace(stage=Stage.ENTERING, rank=1, world_size=3)
    assert said(Link.CONNECTED, Move.ENTRY_ASKED, asked)[-1] == ("CallEnter", entry._replace(overdue=True))
    for move, barrier in (
        (Move.COMPLETION_REACHED, Barrier.COMPLETION),
        (Move.RESTART_REACHED, Barrier.ITERATION),
    ):
        arrived = BarrierArrive(CALL, 0, barrier, 1, active=True, overdue=True)
        assert said(*INSIDE, move, asked)[-1] == ("BarrierArrive", arrived)
    giving = (*INSIDE, Move.RESTART_REACHED, AssignmentBegun(1), VALUE)
    assert said(*giving, WaitOverdue("key"))[-1] == ("ExchangeValue", VALUE._replace(overdue=True))
    assert kinds(after(*giving, WaitOverdue("key"))) == kinds(after(*giving)), "a new supervisor is not asked"
    assert after(*giving, asked, answer).missing == answer
    assert after(*giving, asked, answer, asked).missing is None


def test_a_fault_after_the_order_is_a_consequence_and_not_said():
    assert ("RankFault", FAULT) not in said(*INSIDE, Restart(CALL, 0, FAULTS), FAULT)
    assert said(*INSIDE, FAULT, FAULT._replace(reason="again"))[-1] == ("RankFault", FAULT)


# --- in any order ---------------------------------------------------------------------------------------------------

WORDS: list[IterationBegan | RankFault | ExchangeValue] = [BEGUN, FAULT, VALUE]


def _in_iteration(word: IterationBegan | RankFault | ExchangeValue, iteration: int) -> Event:
    return word._replace(iteration=iteration)


iterations = some.integers(0, 2)
from_supervisor = some.one_of(
    some.sampled_from([CallUnderway(CALL), RanksMissing(CALL, (0,), 1), CallRefused(CALL, "why"), ENTERED]),
    some.builds(Interrupt, some.just(CALL), iterations),
    some.builds(CallCompleted, some.just(CALL), iterations),
    some.builds(Committed, some.just(CALL), iterations),
    some.builds(Restart, some.just(CALL), iterations, some.just(FAULTS)),
    some.builds(BeginIteration, some.just(CALL), iterations, some.just(3), some.just(frozenset[int]())),
    some.builds(Exchanged, some.just(CALL), iterations, some.just("key"), some.just({0: "a"})),
)
from_main_thread = some.one_of(
    some.sampled_from([*Move, WaitOverdue()]),
    some.builds(AssignmentBegun, iterations),
    some.builds(_in_iteration, some.sampled_from(WORDS), iterations),
)
links = some.sampled_from(list(Link))
not_links = some.lists(some.one_of(from_supervisor, from_main_thread, some.just(LEFT)), max_size=30)
orders = some.lists(some.one_of(from_supervisor, from_main_thread, links, some.just(LEFT)), max_size=40)


@given(orders)
def test_nothing_is_said_without_a_connection(events: list[Event]):
    state = State(ENTRY, 1, 3)
    for event in events:
        state, words = step(state, event)
        assert state.is_connected or not words


@given(orders)
def test_what_is_final_stays(events: list[Event]):
    state = State(ENTRY, 1, 3)
    for event in events:
        before, (state, _) = state, step(state, event)
        if before.admission is Answer.OVER or isinstance(before.admission, CallRefused):
            assert state.admission == before.admission
        if before.phase is CallPhase.LEFT:
            assert (state.phase, state.left) == (before.phase, before.left)
        for number, known in before.iterations.items():
            assert number not in state.iterations or state.iterations[number].outcome >= known.outcome
            assert not known.outcome.is_final or state.iterations.get(number, known).outcome is known.outcome


@given(orders, orders)
@example([Committed(CALL, 0), VALUE], [Link.CONNECTED, ENTERED])
def test_a_rank_that_has_left_says_that_and_nothing_else(before: list[Event], later: list[Event]):
    left = after(*before, LEFT)
    state = left
    for event in [*later, Link.CONNECTED]:
        state, words = step(state, event)
        assert words in ((), (left.left,))
    assert words == (left.left,)  # pyright: ignore[reportPossiblyUnboundVariable]


@given(orders)
def test_a_lost_connection_changes_nothing_but_what_is_said(events: list[Event]):
    def comparable(state: State) -> State:
        return state._replace(
            is_connected=True, admission=Answer.NONE if state.admission is Answer.LATE else state.admission
        )

    unbroken = after(*[event for event in events if not isinstance(event, Link)])
    assert comparable(after(*events)) == comparable(unbroken)


@given(not_links)
def test_nothing_is_said_again_that_was_not_said_before(events: list[Event]):
    first = {word for word in said(Link.CONNECTED, *events) if word[0] != "CallEnter"}
    again = said(*events, Link.CONNECTED)
    assert {word for word in again if word[0] != "CallEnter"} <= first
    assert len(again) == len(set(again))


def as_a_main_thread(events: list[Event]) -> list[Event]:
    """Returns the events with the numbers that a main thread gives: it goes forward; a fault is of the present."""
    state, told = State(ENTRY, 1, 3), list[Event]()
    for event in events:
        if isinstance(event, RankFault):
            event = event._replace(iteration=state.iteration)
        elif isinstance(event, IterationBegan):
            event = event._replace(iteration=max(event.iteration, state.iteration))
        state, _ = step(state, event)
        told.append(event)
    return told


@given(not_links.map(as_a_main_thread))
def test_what_is_still_owed_is_said_again(events: list[Event]):
    """All messages of an unbroken connection that belong to this iteration and are unsettled are repeated."""
    state = after(*events)
    told = said(Link.CONNECTED, *events)
    again = {name for name, _ in said(*events, Link.CONNECTED)}
    of_now = {name for name, word in told if getattr(word, "iteration", None) == state.iteration}
    if state.phase is CallPhase.LEFT:
        assert again == {"CallLeave"}
    elif state.phase in (CallPhase.RUNNING, CallPhase.COMPLETING, CallPhase.UNWINDING) and state.begun is not None:
        assert of_now & {"IterationBegan", "RankFault", "FaultsReported"} <= again
