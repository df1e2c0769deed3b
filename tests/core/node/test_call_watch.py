"""Soft and hard timeout: never early, once, by what the page says now, and with stacks before a process is ended."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import CallWatch, Progress, WatchMode
from supervisor.core.node import call_watch as watch
from supervisor.core.node.call_watch import (
    CallEntered,
    CallLeft,
    DeadlineReached,
    EvidenceCollected,
    IterationBegun,
    LimitRanOut,
    PageLost,
    ProgressRead,
    RankCondemned,
    ReadPage,
    SignalRank,
    TakeStacks,
    TellFault,
    WorkerEnded,
)
from supervisor.core.wrapped_calls.call_messages import CallSettings, Interruption
from tests.core.playbook import Playbook

SETTINGS = CallSettings(soft_timeout_s=10.0, hard_timeout_s=20.0, termination_grace_s=5.0)
TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)


def page(
    progressed_at_s: float = 0.0,
    *,
    mode: WatchMode = WatchMode.ON,
    since_s: float = 0.0,
    ping_at_s: float | None = None,
    read_at_s: float | None = None,
) -> ProgressRead:
    stamps = CallWatch(mode, since_s, progressed_at_s, ping_at_s)
    return ProgressRead(Progress(0.0, 0.0, read_at_s=read_at_s, call_watch=stamps))


def watching(evidence_budget_s: float = 0.0) -> Playbook[watch.State]:
    play = Playbook(watch.step, watch.initial_state(), evidence_budget_s=evidence_budget_s)
    return play >> CallEntered(SETTINGS) << ()


def asked(play: Playbook[watch.State]) -> Playbook[watch.State]:
    """Plays up to the next reading of the page."""
    deadline_s = watch.next_deadline_s(play.state)
    assert deadline_s is not None
    return play.at(max(play.now_s, deadline_s)) >> DeadlineReached() << ReadPage()


def test_a_rank_in_no_call_is_not_watched() -> None:
    assert watch.next_deadline_s(watch.initial_state()) is None


def test_a_rank_that_executes_bytecode_is_looked_at_once_for_each_soft_timeout() -> None:
    play = watching()
    for moment_s in (10.0, 20.0, 30.0):
        asked(play)
        assert play.now_s == moment_s
        play >> page(moment_s) << ()


def test_silence_is_told_at_the_soft_timeout_and_the_process_ended_at_the_hard_one() -> None:
    play = asked(watching()) >> page(4.0) << ()
    asked(play)
    assert play.now_s == 14.0
    (
        play
        >> page(4.0)
        << TellFault(Interruption.SOFT_TIMEOUT, "executed no Python code for 10.0 s (soft timeout 10.0 s)")
    )
    asked(play)
    assert play.now_s == 23.9
    asked(play >> page(4.0) << ())
    assert play.now_s == 24.0
    text = "executed no Python code for 20.0 s (hard timeout 20.0 s)"
    play >> page(4.0) << (TellFault(Interruption.HARD_TIMEOUT, text), SignalRank(TERM, tree=False))
    assert watch.next_deadline_s(play.state) == 29.0
    play.at(29.0) >> DeadlineReached() << (SignalRank(TERM, tree=False), SignalRank(KILL, tree=True))
    assert watch.next_deadline_s(play.state) is None


def test_the_stacks_are_taken_and_the_page_is_read_once_more_before_the_process_is_ended() -> None:
    play = asked(watching(0.25)).at(25.0) >> page(0.0)
    play.has(TakeStacks()).lacks(SignalRank)
    play >> EvidenceCollected() << ReadPage()
    play >> page(0.0)
    play.has(SignalRank(TERM, tree=False))


def examined() -> Playbook[watch.State]:
    """Plays an interrupted rank, silent since 4.0, up to the taking of its stacks."""
    play = asked(watching(0.25)) >> page(4.0) << ()
    play = asked(play) >> page(4.0)
    play.has(TellFault(Interruption.SOFT_TIMEOUT, "executed no Python code for 10.0 s (soft timeout 10.0 s)"))
    play = asked(play) >> page(4.0) << TakeStacks()
    assert play.now_s == 23.9
    return play


def test_the_stacks_of_an_interrupted_rank_are_ready_at_its_hard_timeout_and_it_is_not_ended_earlier() -> None:
    play = examined().at(23.95) >> EvidenceCollected() << ()
    asked(play)
    assert play.now_s == 24.0
    play >> page(4.0)
    play.has(SignalRank(TERM, tree=False))
    assert watch.next_deadline_s(play.state) == 29.0


def test_an_interrupted_rank_whose_stacks_come_late_is_ended_once_they_are_there() -> None:
    play = examined().at(24.05) >> EvidenceCollected() << ReadPage()
    play >> page(4.0)
    play.has(SignalRank(TERM, tree=False))


def test_an_interrupted_rank_that_moves_after_its_stacks_were_taken_lives() -> None:
    play = asked(examined() >> EvidenceCollected() << ()) >> page(23.99) << ()
    assert watch.next_deadline_s(play.state) == pytest.approx(43.89)


def test_a_reading_from_before_the_hard_timeout_ends_nobody_and_takes_no_stacks_again() -> None:
    play = asked(examined() >> EvidenceCollected() << ()) >> page(4.0, read_at_s=23.98) << ()
    asked(play) >> page(4.0)
    play.has(SignalRank(TERM, tree=False)).lacks(TakeStacks)


def test_a_rank_that_moves_while_its_stacks_are_taken_lives() -> None:
    play = asked(watching(0.25)).at(25.0) >> page(0.0) >> EvidenceCollected() << ReadPage()
    play >> page(24.9) << ()
    assert watch.next_deadline_s(play.state) is not None


def test_stacks_that_do_not_come_keep_nobody_alive() -> None:
    play = asked(watching(0.25)).at(25.0) >> page(0.0)
    deadline_s = watch.next_deadline_s(play.state)
    assert deadline_s is not None
    assert 25.25 < deadline_s < 25.5
    play.at(deadline_s) >> DeadlineReached() << ReadPage()
    play >> page(0.0)
    play.has(SignalRank(TERM, tree=False))


def test_a_limit_that_runs_out_is_told_as_a_soft_timeout_and_brings_the_hard_one_forward() -> None:
    play = watching().at(5.0) >> page(4.9) << ()
    earlier = CallSettings(soft_timeout_s=10.0, hard_timeout_s=15.0, termination_grace_s=5.0)
    text = "sent no heartbeat for 5.0 s (limit 5.0 s)"
    play.at(6.0) >> LimitRanOut(text, earlier) << TellFault(Interruption.SOFT_TIMEOUT, text)
    play >> LimitRanOut(text, earlier) << ()
    asked(asked(play) >> page(4.9) << ())
    assert play.now_s == 19.9
    play >> page(4.9)
    play.has(SignalRank(TERM, tree=False))


def test_the_next_iteration_has_the_whole_hard_timeout_again() -> None:
    play = watching() >> LimitRanOut("is silent", CallSettings(soft_timeout_s=10.0, hard_timeout_s=12.0))
    play.at(1.0) >> IterationBegun(SETTINGS)
    asked(play) >> page(1.0)
    asked(play)
    assert play.now_s == 20.9
    asked(play >> page(1.0) << ())
    assert play.now_s == 21.0


def test_the_soft_timeout_is_told_once_in_each_iteration() -> None:
    play = asked(watching()) >> page(0.0)
    assert len(play.of(TellFault)) == 1
    asked(play) >> page(1.0) << ()
    play >> IterationBegun(SETTINGS)
    asked(play) >> page(1.0)
    assert [each.interruption for each in play.of(TellFault)][:1] == [Interruption.SOFT_TIMEOUT]


def test_a_ping_arms_the_manual_limit_until_the_watch_begins_anew() -> None:
    play = asked(watching()) >> page(10.0, ping_at_s=3.0) << ()
    asked(play)
    assert play.now_s == 13.0
    text = "called no ping() for 10.0 s (soft timeout 10.0 s)"
    play >> page(13.0, ping_at_s=3.0) << TellFault(Interruption.SOFT_TIMEOUT, text)
    fresh = asked(watching()) >> page(10.0, ping_at_s=3.0, since_s=9.0) << ()
    assert watch.next_deadline_s(fresh.state) == 20.0


def test_silence_before_the_watch_begins_does_not_count() -> None:
    play = asked(watching()) >> page(0.0, since_s=9.5) << ()
    assert watch.next_deadline_s(play.state) == 19.5


def test_what_is_off_is_looked_at_one_soft_timeout_later() -> None:
    play = asked(watching())
    for moment_s in (20.0, 30.0):
        play >> page(0.0, mode=WatchMode.OFF) << ()
        asked(play)
        assert play.now_s == moment_s


def test_an_unwinding_has_the_hard_timeout_from_its_beginning_whatever_the_progress() -> None:
    play = asked(watching()) >> page(10.0, mode=WatchMode.UNWINDING, since_s=8.0) << ()
    asked(play).at(25.0) >> page(25.0, mode=WatchMode.UNWINDING, since_s=8.0) << ()
    asked(play)
    assert play.now_s == 28.0
    play >> page(28.0, mode=WatchMode.UNWINDING, since_s=8.0)
    (fault,) = play.of(TellFault)
    assert fault.reason == "has not come back from the interrupted function for 20.0 s (hard timeout 20.0 s)"


def test_an_old_reading_condemns_nobody() -> None:
    play = asked(watching()).at(60.0) >> page(0.0, read_at_s=9.0) << ()
    deadline_s = watch.next_deadline_s(play.state)
    assert deadline_s is not None
    assert deadline_s > 60.0
    unasked = watching() >> page(-100.0) << ()
    assert isinstance(unasked.state, watch.Watching)


@pytest.mark.parametrize("event", [CallLeft(), WorkerEnded()])
def test_who_has_left_is_not_watched_any_more(event: watch.Event) -> None:
    play = watching() >> event << ()
    assert watch.next_deadline_s(play.state) is None


def test_without_its_page_nothing_is_judged() -> None:
    play = asked(watching()).at(30.0) >> PageLost() << ()
    assert watch.next_deadline_s(play.state) == 40.0


@pytest.mark.parametrize("event", [PageLost(), IterationBegun(SETTINGS)])
def test_a_request_that_nobody_has_answered_is_repeated_after_a_return_and_in_the_next_iteration(
    event: watch.Event,
) -> None:
    play = asked(watching() >> PageLost() << ()).at(12.0)
    assert watch.next_deadline_s(play.state) is None
    asked(play >> event << ())
    assert play.now_s == 22.0


def test_a_condemned_rank_gets_the_signals_whatever_it_does() -> None:
    play = watching() >> RankCondemned() << SignalRank(TERM, tree=False)
    play >> CallLeft() << ()
    play.at(5.0) >> DeadlineReached() << (SignalRank(TERM, tree=False), SignalRank(KILL, tree=True))


@given(
    moves=st.lists(st.floats(0.1, 30.0), max_size=8),
    ticks_s=st.floats(0.0, 0.25),
    soft_s=st.floats(1.0, 10.0),
    hard_more_s=st.floats(0.5, 20.0),
)
def test_never_early_and_never_late(moves: list[float], ticks_s: float, soft_s: float, hard_more_s: float) -> None:
    """The main thread executes something at the moments `moves`, then never again."""
    settings = CallSettings(soft_timeout_s=soft_s, hard_timeout_s=soft_s + hard_more_s)
    moments = [sum(moves[: count + 1]) for count in range(len(moves))]
    play = Playbook(watch.step, watch.initial_state(), evidence_budget_s=0.0) >> CallEntered(settings)
    told: dict[Interruption, float] = {}
    for _ in range(500):
        deadline_s = watch.next_deadline_s(play.state)
        if deadline_s is None or isinstance(play.state, watch.Terminating):
            break
        play.at(max(play.now_s, deadline_s)) >> DeadlineReached()
        if play.of(ReadPage):
            last_s = max((each for each in moments if each <= play.now_s), default=0.0)
            play >> page(last_s + ticks_s)  # up to one tick may still be unknown
        for fault in play.of(TellFault):
            told.setdefault(fault.interruption, play.now_s)
            last_s = max((each for each in moments if each <= play.now_s), default=0.0)
            limit_s = soft_s if fault.interruption is Interruption.SOFT_TIMEOUT else settings.hard_timeout_s
            assert play.now_s >= last_s + limit_s - 1e-6
    else:
        pytest.fail("the machine polls")
    last_s = moments[-1] if moments else 0.0
    assert told[Interruption.HARD_TIMEOUT] <= last_s + ticks_s + settings.hard_timeout_s + 2 * watch.REREAD_PAUSE_S
