"""A limit that no rank arms is reported once, after its own time, and never one that works or was not asked for."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import HangLimits, JobRules, Progress
from supervisor.core.node import ineffective_limits, node_messages
from supervisor.core.node.node_messages import DeadlineReached, Publish, ReadProgress
from supervisor.core.worker_messages import PrepareWorkers, StopWorkers
from tests.core.one_node import JOB, rules, running
from tests.core.playbook import Playbook

FLAG = "--ft-rank-heartbeat-timeout"
IDLE = Progress(0.0, 0.0)
BEATS = Progress(0.0, 0.0, heartbeat_at_s=1.0, heartbeats=1)
IN_SECTION = Progress(0.0, 0.0, open_sections=(("step", 1.0),))


def begun(limits: HangLimits, *, has_rank_0: bool = True) -> Playbook[ineffective_limits.State]:
    of = JobRules(JOB, 2, hang_limits=limits)
    play = Playbook(
        ineffective_limits.step, ineffective_limits.initial_state(), cycle=0, has_rank_0=has_rank_0, rules=of
    )
    play >> PrepareWorkers(0)
    play.at(1.0) >> node_messages.WorkerSpawned(JOB, 0, 0, 100)
    play >> node_messages.WorkerSpawned(JOB, 0, 1, 101)
    return play


def read(progress: Progress) -> node_messages.ProgressRead:
    return node_messages.ProgressRead(JOB, 0, 1, progress)


def sentence(play: Playbook[ineffective_limits.State]) -> str:
    (said,) = play.of(Publish)
    assert said.event.kind == "limit_not_armed"
    return said.event.reason


def test_without_a_heartbeat_its_limit_is_reported_after_its_time() -> None:
    play = begun(HangLimits(heartbeat_s=5.0))
    assert ineffective_limits.next_deadline_s(play.state) == 6.0
    play.at(6.0) >> DeadlineReached() << (ReadProgress(JOB, 0, 0), ReadProgress(JOB, 0, 1))
    play >> read(IDLE) << ()
    play.at(6.0 + ineffective_limits.ANSWER_S) >> DeadlineReached()
    wanted = "no rank has sent a heartbeat within 5 s of its start; until one does, "
    assert sentence(play) == f"{wanted}{FLAG} finds no hang (the first send_heartbeat() arms it)"
    assert ineffective_limits.next_deadline_s(play.state) is None
    play >> PrepareWorkers(1) << ()  # once per job
    play.at(9.0) >> node_messages.WorkerSpawned(JOB, 1, 0, 100)
    assert ineffective_limits.next_deadline_s(play.state) is None


def test_what_the_page_says_at_the_last_moment_counts() -> None:
    play = begun(HangLimits(heartbeat_s=5.0))
    play.at(6.0) >> DeadlineReached()
    play >> read(BEATS) << ()
    play.at(7.0) >> DeadlineReached() << ()


def test_the_default_is_no_wish() -> None:
    assert ineffective_limits.next_deadline_s(begun(HangLimits()).state) is None
    assert ineffective_limits.next_deadline_s(begun(HangLimits(heartbeat_s=None)).state) is None


def test_only_the_node_of_rank_0_reports() -> None:
    assert ineffective_limits.next_deadline_s(begun(HangLimits(heartbeat_s=5.0), has_rank_0=False).state) is None


def test_a_first_limit_is_armed_by_the_client_and_gives_the_heartbeat_its_time() -> None:
    play = begun(HangLimits(initial_heartbeat_s=60.0, heartbeat_s=5.0))
    assert ineffective_limits.next_deadline_s(play.state) == 61.0
    play >> node_messages.ClientJoined(JOB, 0, 0, HangLimits(), IDLE) << ()
    assert ineffective_limits.next_deadline_s(play.state) is None


def test_sections_and_time_outside_of_them_are_reported_each_by_its_own_time() -> None:
    limits = HangLimits(heartbeat_s=None, sections=(("setup", 60.0), ("step", 5.0)), out_of_section_s=20.0)
    play = begun(limits)
    for at_s, flag in ((21.0, "--ft-rank-out-of-section-timeout"), (61.0, "--ft-rank-section-timeouts")):
        play.at(at_s) >> DeadlineReached()
        play.has(ReadProgress(JOB, 0, 0))
        play.at(at_s + ineffective_limits.ANSWER_S) >> DeadlineReached()
        assert flag in sentence(play)
    play = begun(limits)
    play >> read(IN_SECTION)
    assert ineffective_limits.next_deadline_s(play.state) is None


def test_a_cycle_that_ends_early_starts_the_time_again() -> None:
    play = begun(HangLimits(heartbeat_s=5.0))
    play.at(3.0) >> StopWorkers(15, 1.0) << ()
    play.at(9.0) >> DeadlineReached() << ()
    play >> PrepareWorkers(1)
    play.at(10.0) >> node_messages.WorkerSpawned(JOB, 1, 0, 102)
    assert ineffective_limits.next_deadline_s(play.state) == 15.0


def test_a_worker_that_starts_after_the_order_to_end_begins_no_time() -> None:
    play = begun(HangLimits(heartbeat_s=5.0))
    play >> StopWorkers(15, 1.0) << ()
    play.at(2.0) >> node_messages.WorkerSpawned(JOB, 0, 1, 101) << ()
    assert ineffective_limits.next_deadline_s(play.state) is None
    play >> PrepareWorkers(1) << ()
    play.at(3.0) >> node_messages.WorkerSpawned(JOB, 1, 0, 102) << ()
    assert ineffective_limits.next_deadline_s(play.state) == 8.0


def test_in_a_job_it_is_an_event_and_nothing_else_happens() -> None:
    job = running(rules(2, hang_limits=HangLimits(heartbeat_s=5.0))).pass_to(20.0)
    assert len(job.said("limit_not_armed")) == 1
    assert job.verdict() is None
    assert job.said("hang_detected") == []


@given(st.lists(st.sampled_from(("beat", "section", "idle", "later")), max_size=12))
def test_a_limit_is_reported_exactly_where_nothing_armed_it_in_time(steps: list[str]) -> None:
    play = begun(HangLimits(heartbeat_s=4.0))
    now_s, beat, reports = 1.0, False, 0
    for each in steps:
        if each == "later":
            now_s += 1.0
            play.at(now_s) >> DeadlineReached()
            reports += len(play.of(Publish))
            assert not (beat and play.of(Publish))
        else:
            beat = beat or (each == "beat" and not reports)
            play >> read({"beat": BEATS, "section": IN_SECTION, "idle": IDLE}[each]) << ()
    assert reports == (1 if now_s >= 6.0 and not beat else 0)
