"""Every limit, alone and combined, and the promise: never early, never late, once."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import rank_monitor as monitor
from supervisor.core.node.rank_monitor import ClientJoined, ClientLeft, DeadlineReached, DeclareHang, ReadPage
from supervisor.core.rank_silence import COMES_BACK_S, counted_from
from tests.core import dumb
from tests.core.playbook import Playbook

STEP_LIMITS = HangLimits(heartbeat_s=None, sections=(("step", 5.0),))


def watching(limits: HangLimits, **stamps: object) -> Playbook[monitor.State]:
    play = Playbook(monitor.step, monitor.initial_state())
    play >> ClientJoined(limits, progress(**stamps)) << ()
    return play


def progress(**stamps: object) -> Progress:
    return msgspec.structs.replace(Progress(initialised_at_s=0.0, out_of_section_since_s=0.0), **stamps)  # pyright: ignore[reportArgumentType]


def verdict(limits: HangLimits, script: dumb.Script, *, until_s: float) -> tuple[float, str, int] | None:
    """Returns (moment, reason, readings) of the machine driven only by its own deadlines."""
    play = watching(limits, **_stamps(script.progress(script.initialised_at_s)))
    readings = 0
    while True:
        deadline_s = monitor.next_deadline_s(play.state)
        if deadline_s is None or deadline_s >= until_s:
            return None
        play.at(max(deadline_s, play.now_s)) >> DeadlineReached() << ReadPage()
        readings += 1
        assert readings < 2000, "the machine polls"
        play >> monitor.ProgressRead(script.progress(play.now_s))
        for hang in play.of(DeclareHang):
            return play.now_s, hang.reason, readings


def _stamps(known: Progress) -> dict[str, object]:
    return msgspec.structs.asdict(known)


# --- heartbeats ----------------------------------------------------------------------------------------------------


def test_without_a_client_nothing_is_judged() -> None:
    play = Playbook(monitor.step, monitor.initial_state())
    assert monitor.next_deadline_s(play.state) is None
    play.at(1e9) >> DeadlineReached() << ()


def test_a_client_that_uses_neither_is_not_judged_by_the_defaults() -> None:
    """By default there is no hang detection before the first heartbeat; the page is read from time to time."""
    assert verdict(HangLimits(), dumb.Script(), until_s=100_000.0) is None


def test_the_default_limit_is_armed_by_the_first_heartbeat() -> None:
    moment = verdict(HangLimits(), dumb.Script(heartbeats=[10.0]), until_s=10_000.0)
    assert moment is not None
    assert moment[0] == 2710.0
    assert moment[1] == "sent no heartbeat for 2700.0 s (limit 2700.0 s)"


def test_the_initial_limit_runs_from_init_and_ends_with_the_first_heartbeat() -> None:
    limits = HangLimits(initial_heartbeat_s=10.0, heartbeat_s=3.0)
    late = verdict(limits, dumb.Script(), until_s=100.0)
    assert late is not None
    assert late[:2] == (10.0, "sent no first heartbeat for 10.0 s since its start (limit 10.0 s)")
    switched = verdict(limits, dumb.Script(heartbeats=[9.5]), until_s=100.0)
    assert switched is not None
    assert switched[:2] == (12.5, "sent no heartbeat for 3.0 s (limit 3.0 s)")
    slow_start = verdict(limits, dumb.Script(heartbeats=[4.0, 6.9, 9.8, 12.7]), until_s=15.0)
    assert slow_start is None


def test_none_is_off() -> None:
    limits = HangLimits(initial_heartbeat_s=None, heartbeat_s=None)
    assert verdict(limits, dumb.Script(heartbeats=[1.0]), until_s=1e9) is None


def test_the_verdict_comes_at_the_limit_and_never_before() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(4.999) >> DeadlineReached() << ()
    play.at(5.0) >> DeadlineReached() << ReadPage()
    play >> DeadlineReached() << ()
    fresher = progress(heartbeat_at_s=4.9, heartbeats=7)
    play >> monitor.ProgressRead(fresher) << ()
    assert monitor.next_deadline_s(play.state) == pytest.approx(9.9)
    play.at(9.9) >> DeadlineReached() << ReadPage()
    play >> monitor.ProgressRead(fresher) << DeclareHang(4.9, "sent no heartbeat for 5.0 s (limit 5.0 s)", 5.0)


def test_an_excused_silence_counts_anew_and_the_next_verdict_says_so() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    silent = progress(heartbeat_at_s=0.0, heartbeats=1)
    play.at(5.0) >> DeadlineReached() >> monitor.ProgressRead(silent)
    play.at(6.0) >> monitor.SilenceExcused() << ()
    play.at(11.0) >> DeadlineReached() << ReadPage()
    text = "sent no heartbeat for 5.0 s (limit 5.0 s)"
    play >> monitor.ProgressRead(silent) << DeclareHang(6.0, text, 5.0, since_excuse=True)


def test_a_sign_after_an_excuse_is_judged_as_ever() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(3.0) >> monitor.SilenceExcused() << ()
    assert monitor.next_deadline_s(play.state) == 8.0
    beat = progress(heartbeat_at_s=4.0, heartbeats=2)
    play.at(8.0) >> DeadlineReached() >> monitor.ProgressRead(beat)
    play.at(9.0) >> DeadlineReached() << ReadPage()
    play >> monitor.ProgressRead(beat) << DeclareHang(4.0, "sent no heartbeat for 5.0 s (limit 5.0 s)", 5.0)


def test_a_pause_of_the_supervisor_counts_in_no_excused_silence() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(3.0) >> monitor.SilenceExcused() << ()
    play.at(60.0) >> monitor.ProcessPaused(4.0) << ()
    assert monitor.next_deadline_s(play.state) == 3.0 + 56.0 + 5.0


def test_one_verdict_for_each_hang() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    silent = progress(heartbeat_at_s=0.0, heartbeats=1)
    play.at(5.0) >> DeadlineReached() << ReadPage()
    play >> monitor.ProgressRead(silent)
    assert play.of(DeclareHang)
    for event in (
        monitor.ProgressRead(silent), DeadlineReached(), ClientLeft(), ClientJoined(HangLimits(), silent),
        monitor.LimitsChanged(HangLimits(heartbeat_s=0.1)),
    ):  # fmt: skip
        play.at(play.now_s + 10) >> event << ()
    assert monitor.next_deadline_s(play.state) is None
    play >> monitor.WorkerEnded() << ()
    assert play.state == monitor.Gone()


# --- our own delay is nobody's hang ----------------------------------------------------------------------------------


def test_an_old_reading_does_not_condemn() -> None:
    """The supervisor was stopped between reading the page and judging it: it reads again."""
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(5.0) >> DeadlineReached() << ReadPage()
    old = progress(heartbeat_at_s=3.0, heartbeats=4, read_at_s=5.0)
    play.at(60.0) >> monitor.ProgressRead(old) << ()
    assert monitor.next_deadline_s(play.state) == 60.0 + monitor.REREAD_PAUSE_S
    play.at(60.05) >> DeadlineReached() << ReadPage()
    play >> monitor.ProgressRead(progress(heartbeat_at_s=60.0, heartbeats=61, read_at_s=60.05)) << ()
    assert monitor.next_deadline_s(play.state) == 65.0


def test_news_that_was_not_asked_for_is_no_verdict() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(60.0) >> monitor.ProgressRead(progress(heartbeat_at_s=0.0, heartbeats=1)) << ()
    play >> DeadlineReached() << ReadPage()


def test_no_answer_is_no_verdict() -> None:
    play = watching(HangLimits(heartbeat_s=5.0), heartbeat_at_s=0.0, heartbeats=1)
    play.at(5.0) >> DeadlineReached() << ReadPage()
    assert monitor.next_deadline_s(play.state) is None
    play >> ClientLeft() << ()
    play.at(100.0) >> DeadlineReached() << ()


def test_a_new_connection_starts_afresh() -> None:
    limits = HangLimits(initial_heartbeat_s=10.0, heartbeat_s=5.0)
    play = watching(limits, heartbeat_at_s=1.0, heartbeats=1)
    play.at(4.0) >> ClientLeft() << ()
    assert monitor.next_deadline_s(play.state) is None
    play.at(20.0) >> ClientJoined(limits, progress(initialised_at_s=20.0, out_of_section_since_s=20.0)) << ()
    play.at(24.0) >> DeadlineReached() << ()
    play.at(25.0) >> DeadlineReached() << ReadPage()  # a first heartbeat might have come right after the hello
    play >> monitor.ProgressRead(progress(initialised_at_s=20.0)) << ()
    assert monitor.next_deadline_s(play.state) == 30.0


# --- sections ------------------------------------------------------------------------------------------------------


def test_an_open_section_beyond_its_limit() -> None:
    script = dumb.Script(sections=[("step", 2.0, 1e9)])
    moment = verdict(STEP_LIMITS, script, until_s=100.0)
    assert moment is not None
    assert moment[:2] == (7.0, "has been in section 'step' for 5.0 s (limit 5.0 s)")


def test_a_section_without_a_limit_or_not_named_is_not_watched() -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("setup", None), ("step", 5.0)))
    assert verdict(limits, dumb.Script(sections=[("setup", 0.0, 1e9), ("other", 0.0, 1e9)]), until_s=1000.0) is None


@pytest.mark.parametrize(
    ("sections", "moment_s"),
    [
        ([("outer", 0.0, 1e9), ("inner", 1.0, 1e9)], 4.0),  # the younger one is tighter
        ([("outer", 0.0, 1e9), ("inner", 8.0, 9.0), ("inner", 9.5, 1e9)], 10.0),  # an expired outer one is not masked
        ([("outer", 0.0, 5.0), ("inner", 4.0, 1e9)], 7.0),  # overlap, closed in the other order
        ([("outer", 0.0, 9.0), ("inner", 4.0, 6.0)], None),
    ],
)
def test_any_expired_section_is_a_hang(sections: list[tuple[str, float, float]], moment_s: float | None) -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("outer", 10.0), ("inner", 3.0)))
    found = verdict(limits, dumb.Script(sections=sections), until_s=100.0)
    assert (found and found[0]) == moment_s


def test_heartbeats_and_sections_are_independent() -> None:
    limits = HangLimits(
        heartbeat_s=2.0, sections=(("warmup", 3.0), ("step", 3.0)), out_of_section_s=3.0, warm_up_steps=0
    )
    beats = [each * 1.5 for each in range(1, 40)]
    assert verdict(limits, dumb.Script(heartbeats=beats), until_s=59.0) is None
    steps = [("step", each * 2.0, each * 2.0 + 1.0) for each in range(30)]
    assert verdict(limits, dumb.Script(sections=steps), until_s=59.0) is None


def test_an_initial_limit_holds_for_a_client_of_sections_only_where_it_is_configured() -> None:
    steps = [("step", each * 2.0, each * 2.0 + 1.0) for each in range(30)]
    configured = msgspec.structs.replace(STEP_LIMITS, initial_heartbeat_s=20.0)
    found = verdict(configured, dumb.Script(sections=steps), until_s=59.0)
    assert found is not None
    assert found[0] == 20.0


def test_outside_of_sections_counts_from_the_first_step_unless_warmup_is_limited() -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("setup", 50.0), ("step", 5.0)), out_of_section_s=3.0)
    before = dumb.Script(sections=[("setup", 1.0, 2.0)])
    assert verdict(limits, before, until_s=1000.0) is None
    after = dumb.Script(sections=[("setup", 1.0, 2.0), ("step", 30.0, 31.0)])
    found = verdict(limits, after, until_s=1000.0)
    assert found is not None
    assert found[:2] == (34.0, "is outside of all sections for 3.0 s (limit 3.0 s)")
    with_warm_up = msgspec.structs.replace(limits, sections=(*limits.sections, ("warmup", 60.0)))
    found = verdict(with_warm_up, before, until_s=1000.0)
    assert found is not None
    assert found[0] == 5.0
    found = verdict(with_warm_up, dumb.Script(), until_s=1000.0)
    assert found is not None
    assert found[0] == 3.0


def test_steps_of_the_warm_up_have_its_limit_and_later_ones_their_own() -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("step", 2.0), ("warmup", 20.0)), warm_up_steps=2)
    warm = [("step", 0.0, 15.0), ("step", 20.0, 35.0)]
    assert verdict(limits, dumb.Script(sections=warm), until_s=100.0) is None
    found = verdict(limits, dumb.Script(sections=[*warm, ("step", 40.0, 1e9)]), until_s=100.0)
    assert found is not None
    assert found[:2] == (42.0, "has been in section 'step' for 2.0 s (limit 2.0 s)")
    found = verdict(limits, dumb.Script(sections=[("step", 0.0, 15.0), ("step", 20.0, 1e9)]), until_s=100.0)
    assert found is not None
    assert found[:2] == (40.0, "has been in section 'step' for 20.0 s (warmup limit 20.0 s)")


def test_a_name_with_braces_is_shown_as_it_is() -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("{x}", 0.25),))
    found = verdict(limits, dumb.Script(sections=[("{x}", 0.0, 1e9)]), until_s=9.0)
    assert found is not None
    assert found[1] == "has been in section '{x}' for 0.25 s (limit 0.25 s)"


# --- new limits ----------------------------------------------------------------------------------------------------


def test_new_limits_hold_at_once_but_never_condemn_by_an_old_reading() -> None:
    play = watching(HangLimits(heartbeat_s=100.0, warm_up_steps=3), heartbeat_at_s=0.0, heartbeats=1)
    play.at(50.0) >> monitor.LimitsChanged(HangLimits(heartbeat_s=10.0)) << ()
    assert isinstance(play.state, monitor.Watching)
    assert play.state.limits == HangLimits(heartbeat_s=10.0, warm_up_steps=3)
    play >> DeadlineReached() << ReadPage()
    play >> monitor.ProgressRead(progress(heartbeat_at_s=45.0, heartbeats=9)) << ()
    assert monitor.next_deadline_s(play.state) == 55.0


def test_there_is_no_polling() -> None:
    """Readings are bounded by time over the smallest limit, however often the rank stamps."""
    beats = [each * 0.01 for each in range(2_000)]
    found = verdict(HangLimits(heartbeat_s=10.0), dumb.Script(heartbeats=beats), until_s=1000.0)
    assert found is not None
    assert found[0] == pytest.approx(29.99)
    assert found[2] <= 5


# --- against the slow twin -------------------------------------------------------------------------------------------

TENTHS = st.integers(0, 600).map(lambda tenths: tenths / 8)
LIMIT = st.one_of(st.none(), st.integers(1, 80).map(lambda tenths: tenths / 8))


@st.composite
def scripts(draw: st.DrawFn) -> dumb.Script:
    beats = draw(st.lists(TENTHS, max_size=12))
    sections: list[tuple[str, float, float]] = []
    for name in ("step", "setup", "warmup"):
        moments = sorted(set(draw(st.lists(TENTHS, max_size=8))))
        spans = list(zip(moments[::2], [*moments[1::2], 1e9], strict=False))
        sections += [(name, opened, closed) for opened, closed in spans]
    return dumb.Script(heartbeats=sorted(beats), sections=sorted(sections, key=lambda each: each[1]))


@st.composite
def hang_limits(draw: st.DrawFn) -> HangLimits:
    names = draw(st.sets(st.sampled_from(["step", "setup", "warmup"])))
    return HangLimits(
        initial_heartbeat_s=draw(LIMIT),
        heartbeat_s=draw(LIMIT),
        sections=tuple((name, draw(LIMIT)) for name in sorted(names)),
        out_of_section_s=draw(LIMIT),
        warm_up_steps=draw(st.integers(0, 3)),
    )


@given(script=scripts(), limits=hang_limits())
@settings(max_examples=250)
def test_the_verdict_comes_exactly_when_the_first_limit_is_met(script: dumb.Script, limits: HangLimits) -> None:
    monitored = {name for name, _ in limits.sections}
    # A client stamps only sections that are monitored.
    seen = dataclasses.replace(script, sections=[each for each in script.sections if each[0] in monitored])
    truth = dumb.first_hang_s(seen, limits, until_s=200.0)
    found = verdict(limits, seen, until_s=200.0)
    assert (found and found[0]) == truth


# --- a supervisor that came back ------------------------------------------------------------------------------------


def test_a_rank_whose_page_was_lost_with_the_supervisor_is_judged_from_when_its_client_should_be_back() -> None:
    """It holds the GIL, for example: its client can't reconnect."""
    limits, read = HangLimits(heartbeat_s=5.0), Progress(0.0, 0.0, heartbeat_at_s=90.0)
    state: monitor.State = monitor.Watching(limits, read, 90.0)
    known = counted_from(read, 100.0)
    state, _ = monitor.step(state, monitor.PageLost(), now_s=100.0)
    hung: tuple[monitor.Action, ...] = ()
    now_s = 100.0
    while not hung:
        deadline_s = monitor.next_deadline_s(state)
        assert deadline_s is not None
        now_s = max(now_s, deadline_s)
        state, asked = monitor.step(state, monitor.DeadlineReached(), now_s=now_s)
        assert asked == (monitor.ReadPage(),)
        state, hung = monitor.step(state, monitor.ProgressRead(known), now_s=now_s)
    assert now_s == 100.0 + COMES_BACK_S + 5.0


def test_a_rank_that_was_being_read_when_the_supervisor_was_lost_is_watched_again() -> None:
    limits, read = HangLimits(heartbeat_s=5.0), Progress(0.0, 0.0, heartbeat_at_s=90.0)
    state, _ = monitor.step(monitor.Reading(limits, read), monitor.PageLost(), now_s=100.0)
    assert state == monitor.Watching(limits, read, 100.0)
    for other in (monitor.Silent(), monitor.Gone()):
        assert monitor.step(other, monitor.PageLost(), now_s=100.0) == (other, ())
