"""Is the attribution service asked at the right moments, never twice at once, and never at the job's cost?"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.attribution import attribution_requests
from supervisor.core.attribution.attribution_requests import (
    Action,
    AskVerdict,
    CycleBegan,
    CycleEnded,
    DeadlineReached,
    Event,
    Failed,
    Forbid,
    Forgotten,
    JobEnded,
    Judged,
    LogClosed,
    Pending,
    Refused,
    Replied,
    Reply,
    ServiceDown,
    ServiceUp,
    Submit,
    Taken,
    Tell,
    Warn,
)

STOP = Judged("STOP", "the disk is full", "rules")
RESTART = Judged("RESTART", "rank 1: ValueError", "rules")


class Job:
    """A job that asks, at times that the test sets."""

    def __init__(self, *, forbids: bool = False, is_up: bool = True) -> None:
        self.state = attribution_requests.initial_state(forbids=forbids, is_up=is_up)
        self.now_s = 0.0

    def hears(self, event: Event) -> tuple[Action, ...]:
        self.state, actions = attribution_requests.step(self.state, event, now_s=self.now_s)
        return actions

    def is_answered(self, reply: Reply) -> tuple[Action, ...]:
        assert self.state.busy is not None
        return self.hears(Replied(self.state.busy, reply))

    def waits(self) -> tuple[Action, ...]:
        deadline_s = attribution_requests.next_deadline_s(self.state)
        assert deadline_s is not None
        assert deadline_s >= self.now_s
        self.now_s = deadline_s
        return self.hears(DeadlineReached())


def submitted(job: Job, cycle: int = 0) -> None:
    """Ends the cycle and submits its log."""
    assert job.hears(CycleBegan(cycle)) == (Submit(cycle, is_terminal=False),)
    assert job.is_answered(Taken()) == ()
    assert job.hears(CycleEnded(cycle, ("a",))) == ()
    assert job.hears(LogClosed(cycle, "a")) == (Submit(cycle, is_terminal=True),)
    assert job.is_answered(Taken()) == ()


def test_a_cycle_is_submitted_as_it_begins_and_once_its_log_is_complete():
    job = Job()
    assert job.hears(CycleBegan(0)) == (Submit(0, is_terminal=False),)
    assert job.hears(CycleBegan(0)) == ()
    assert job.is_answered(Taken()) == ()
    assert job.hears(LogClosed(0, "b")) == ()  # a node whose ranks ended first
    assert job.hears(CycleEnded(0, ("a", "b"))) == ()
    assert job.hears(CycleBegan(1)) == (Submit(1, is_terminal=False),)  # nothing waits for the last one's log
    assert job.is_answered(Taken()) == ()
    assert job.hears(LogClosed(0, "a")) == (Submit(0, is_terminal=True),)


def test_a_log_that_a_lost_node_never_closes_is_submitted_after_a_while():
    job = Job()
    job.hears(CycleBegan(0))
    job.is_answered(Taken())
    job.hears(CycleEnded(0, ("a", "lost")))
    assert job.hears(LogClosed(0, "a")) == ()
    assert job.waits() == (Submit(0, is_terminal=True),)
    assert job.now_s == attribution_requests.LOG_COMPLETE_S


def test_the_verdict_is_asked_for_at_growing_intervals():
    job = Job()
    submitted(job)
    moments: list[float] = []
    for _ in range(9):
        assert job.waits() == (AskVerdict(0),)
        moments.append(job.now_s)
        job.is_answered(Pending())
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert job.waits() == (AskVerdict(0),)
    assert job.is_answered(RESTART) == (Tell(0, RESTART),)
    assert attribution_requests.next_deadline_s(job.state) is None


def test_a_verdict_that_never_comes_is_given_up():
    job = Job()
    submitted(job)
    while job.state.cycles:
        if job.waits():
            job.is_answered(Pending())
    assert job.now_s == attribution_requests.GIVEN_UP_S


def test_advice_to_stop_ends_the_job_where_that_is_wanted():
    for forbids, follows in ((False, ()), (True, (Forbid(STOP.reason),))):
        job = Job(forbids=forbids)
        submitted(job)
        job.hears(CycleBegan(1))
        job.is_answered(Taken())
        job.waits()
        assert job.is_answered(STOP) == (Tell(0, STOP), *follows)


def test_a_dead_service_costs_one_warning_and_is_asked_ever_more_seldom():
    job = Job()
    actions = list(job.hears(CycleBegan(0)))
    actions += job.is_answered(Failed("connection refused"))
    moments: list[float] = []
    for _ in range(10):
        actions += job.waits()
        moments.append(job.now_s)
        actions += job.is_answered(Failed("connection refused"))
    assert [each for each in actions if isinstance(each, Warn)] == [Warn("connection refused")]
    assert max(later - earlier for earlier, later in pairwise(moments)) == attribution_requests.AGAIN_MAX_S
    job.hears(CycleEnded(0, ()))
    job.waits()
    assert job.is_answered(Taken()) == ()  # it is back


def test_a_refused_submission_is_not_repeated_but_the_end_of_the_cycle_is_submitted():
    job = Job()
    job.hears(CycleBegan(0))
    assert job.is_answered(Refused("403")) == (Warn("403"),)
    assert attribution_requests.next_deadline_s(job.state) is None
    assert job.hears(CycleEnded(0, ())) == (Submit(0, is_terminal=True),)
    assert job.is_answered(Refused("403")) == ()
    assert job.state.cycles == ()


def test_an_answer_about_the_beginning_of_a_cycle_that_has_ended_meanwhile_is_no_answer_about_its_end():
    job = Job()
    job.hears(CycleBegan(0))
    job.hears(CycleEnded(0, ()))
    assert job.is_answered(Taken()) == (Submit(0, is_terminal=True),)


def test_a_log_that_the_service_has_forgotten_is_submitted_again():
    job = Job()
    submitted(job)
    job.waits()
    assert job.is_answered(Forgotten()) == ()
    assert job.waits() == (Submit(0, is_terminal=True),)


def test_nothing_is_sent_before_the_service_is_up_and_a_new_one_hears_of_the_cycles_before():
    job = Job(is_up=False)
    assert job.hears(CycleBegan(0)) == ()
    assert attribution_requests.next_deadline_s(job.state) is None
    assert job.hears(ServiceUp()) == (Submit(0, is_terminal=False),)
    job.is_answered(Taken())
    for cycle in range(3):
        job.hears(CycleEnded(cycle, ()))
        job.is_answered(Taken())
        job.waits()
        job.is_answered(RESTART)
        job.hears(CycleBegan(cycle + 1))
        job.is_answered(Taken())
    assert job.hears(ServiceDown("killed")) == (Warn("killed"),)
    job.hears(CycleEnded(3, ()))
    assert job.hears(ServiceUp()) == (Submit(1, is_terminal=True),)
    assert job.is_answered(Taken()) == (Submit(2, is_terminal=True),)
    assert job.is_answered(Taken()) == (Submit(3, is_terminal=True),)


def test_the_end_of_a_success_waits_for_its_last_submission_alone():
    job = Job()
    job.hears(CycleBegan(0))
    job.is_answered(Taken())
    job.hears(CycleEnded(0, ("a",)))
    assert job.hears(JobEnded(succeeded=True)) == (Submit(0, is_terminal=True),)
    assert attribution_requests.next_deadline_s(job.state) == attribution_requests.LAST_SUBMISSION_S
    job.is_answered(Taken())
    assert job.state.is_over


def test_the_end_of_a_failure_waits_a_while_for_the_verdict_and_is_not_forbidden():
    job = Job(forbids=True)
    job.hears(CycleBegan(0))
    job.is_answered(Taken())
    assert job.hears(JobEnded(succeeded=False)) == (Submit(0, is_terminal=True),)
    job.is_answered(Taken())
    assert job.waits() == (AskVerdict(0),)
    assert job.is_answered(STOP) == (Tell(0, STOP),)
    assert job.state.is_over


def test_the_end_of_a_job_does_not_wait_for_a_service_that_does_not_answer():
    silent, gone, dead = Job(), Job(is_up=False), Job()
    for job in (silent, gone, dead):
        job.hears(CycleBegan(0))
    dead.is_answered(Failed("no answer"))
    gone.hears(ServiceDown("it has ended with code 1"))
    for job in (gone, dead):
        job.hears(JobEnded(succeeded=False))
        assert job.state.is_over
    silent.hears(JobEnded(succeeded=False))
    silent.waits()
    assert silent.state.is_over
    assert silent.now_s == attribution_requests.LAST_WORDS_S


REPLIES: list[Reply] = [Taken(), Pending(), Forgotten(), STOP, RESTART, Refused("no"), Failed("no")]
MOVES = st.one_of(
    st.integers(0, 12).map(CycleBegan),
    st.integers(0, 12).map(lambda cycle: CycleEnded(cycle, ("a",))),
    st.integers(0, 12).map(lambda cycle: LogClosed(cycle, "a")),
    st.sampled_from([ServiceUp(), ServiceDown("x"), DeadlineReached()]),
    st.sampled_from(REPLIES),
)


@given(st.lists(st.tuples(st.floats(0.0, 40.0), MOVES), max_size=60), st.booleans())
def test_whatever_happens_there_is_one_request_at_a_time_one_warning_and_an_end(
    moves: list[tuple[float, Event | Reply]], succeeded: bool
):
    job, warnings = Job(forbids=True), 0
    for pause_s, move in [*moves, (0.0, JobEnded(succeeded))]:
        job.now_s += pause_s
        before = job.state.busy
        actions: tuple[Action, ...] = ()
        if isinstance(move, Event):
            actions = job.hears(move)
        elif before is not None:
            actions = job.is_answered(move)
        requests = [each for each in actions if isinstance(each, Submit | AskVerdict)]
        assert len(requests) <= 1
        if requests and isinstance(move, CycleBegan | CycleEnded | LogClosed | DeadlineReached):
            assert before is None
        warnings += sum(isinstance(each, Warn) for each in actions)
        assert len(job.state.cycles) <= attribution_requests.CYCLES_MAX
    assert warnings <= 1
    ends_s = job.now_s + attribution_requests.LAST_WORDS_S
    while not job.state.is_over:
        job.waits()
        assert job.now_s <= ends_s
