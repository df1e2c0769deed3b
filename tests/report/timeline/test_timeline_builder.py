"""Is a job's life reported correctly: cycles, incidents with causes and costs, and the course of the whole time?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import JobState
from supervisor.core.rank_silence import Silence
from supervisor.ports.reports import RecordedEvent
from supervisor.report.terminal_report import text_of
from supervisor.report.timeline.event_ordering import in_order, moment_ns
from supervisor.report.timeline.incidents import silence_s
from supervisor.report.timeline.timeline import Life, LongestSilence, Outcome, Phase, RunEnd, Trouble
from supervisor.report.timeline.timeline_builder import life_of
from tests.report.timeline.jobs import BEGAN_NS, NODE, Told, killed_and_hung


def told(job: Told, state: JobState = JobState.SUCCEEDED, *, now_s: float = 0.0) -> Life:
    return life_of(job.report(state), job.events, now_ns=BEGAN_NS + round(now_s * 1e9))


def course(life: Life) -> list[tuple[str, float]]:
    return [(span.phase.value, round(span.took_s, 2)) for span in life.course]


def test_a_killed_rank_and_a_hang():
    life = told(killed_and_hung())
    killed, hung = life.incidents
    assert (killed.trouble, killed.outcome, killed.culprits, killed.node) == (
        Trouble.FAILURE, Outcome.RESTARTED, (1,), "vm"
    )  # fmt: skip
    assert killed.cause == "rank 1 (pid 101) was killed by SIGKILL"
    assert killed.decision == "restarting at once, restarts used 1 of 5"
    assert killed.cost_s(life.until_ns) == pytest.approx(0.6)
    assert [(span.phase.value, round(span.took_s, 2)) for span in killed.phases] == [
        ("deciding", 0.1), ("stopping", 0.2), ("meeting", 0.2), ("starting", 0.1)
    ]  # fmt: skip
    assert (hung.trouble, hung.culprits, hung.units_used) == (Trouble.HANG, (2,), 2)
    assert hung.cost_s(life.until_ns) == pytest.approx(2.7)  # including the two seconds before it was noticed
    assert hung.phases[0].phase is Phase.UNNOTICED
    assert [group.ranks for group in hung.stacks] == ["2", "0, 1"]  # the culprit's own first


def test_the_script_that_was_seen_after_a_restart_belongs_to_its_incident():
    job = killed_and_hung()
    job.say(30.0, "script_seen", "first sign of the script after 2.31 s: output of rank 0, cycle 1", cycle=1, rank=0)
    killed, hung = told(job).incidents
    assert killed.script == "first sign of the script after 2.31 s: output of rank 0, cycle 1"
    assert hung.script == ""
    assert "     script: first sign of the script after 2.31 s: output of rank 0, cycle 1\n" in text_of(told(job))


def test_the_longest_silence_of_all_cycles_and_nodes_is_shown():
    job = killed_and_hung()
    for cycle, longest in ((0, "3.25"), (1, "41.500"), (2, "no number")):
        details = (("longest_s", longest), ("limit_s", "60"))
        job.say(30.0 + cycle, "main_threads_measured", cycle=cycle, rank=1, details=details)
    life = told(job)
    assert life.silence == LongestSilence(41.5, 60.0, 1, 1)
    assert "Longest silence    41.5 s  of a main thread, rank 1 in cycle 1; limit 1 min 00 s" in text_of(life)


def test_the_course_has_no_gap():
    life = told(killed_and_hung())
    assert course(life) == [
        ("waiting", 2.0), ("starting", 0.1), ("running", 7.9), ("deciding", 0.1), ("stopping", 0.2), ("meeting", 0.2),
        ("starting", 0.1), ("running", 7.4), ("unnoticed", 2.0), ("deciding", 0.2), ("stopping", 0.2), ("meeting", 0.2),
        ("starting", 0.1), ("running", 8.8), ("ending", 0.5),
    ]  # fmt: skip
    assert life.running_share == pytest.approx((7.9 + 7.4 + 8.8) / 30)


def test_each_process_of_each_rank():
    life = told(killed_and_hung())
    assert [(run.cycle, run.end) for run in life.runs if run.rank == 1] == [
        (0, RunEnd.FAILED), (1, RunEnd.STOPPED), (2, RunEnd.EXITED)
    ]  # fmt: skip


def test_a_job_that_runs_is_told_so_far():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    life = told(job, JobState.RUNNING, now_s=60)
    assert course(life) == [("waiting", 2.0), ("starting", 0.1), ("running", 57.9)]
    assert {run.end for run in life.runs} == {RunEnd.RUNS}


def test_an_incident_that_is_not_over():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(10, "worker_failed", "rank 1 was killed by SIGKILL", rank=1)
    job.say(10.1, "workers_stopping")
    (incident,) = told(job, JobState.RESTARTING, now_s=13).incidents
    assert (incident.outcome, incident.until_ns) == (Outcome.OPEN, None)
    assert incident.cost_s(BEGAN_NS + 13 * 10**9) == pytest.approx(3)


def test_the_last_fault_ends_the_job():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(10, "worker_failed", "rank 1 failed with exit code 1: ZeroDivisionError: no samples", rank=1)
    job.stop(10, cycle=0, ranks=(0,))
    job.say(11, "job_failed", "rank 1 failed with exit code 1: ZeroDivisionError: no samples; restarts used 0 of 0")
    life = told(job, JobState.FAILED)
    assert [each.outcome for each in life.incidents] == [Outcome.ENDED_JOB]
    assert life.course[-1].phase is Phase.ENDING


def test_the_end_of_a_job_that_ends_well_is_no_incident():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.stop(10, cycle=0, ranks=range(2), code_0=True)
    job.say(11, "job_succeeded")
    assert told(job).incidents == ()


def test_the_root_cause_is_to_blame_and_not_what_was_seen_first():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(10, "worker_failed", "rank 0 (pid 100) failed with exit code 1: Connection reset", rank=0)
    job.say(10.1, "worker_failed", "rank 1 (pid 101) was killed by SIGKILL", rank=1)
    job.say(10.2, "root_cause_found", "rank 1 (pid 101) was killed by SIGKILL; it came before rank 0 failed")
    job.decide(10.2, "rank 1 (pid 101) was killed by SIGKILL", cycle=0)
    job.stop(10.3, cycle=0, ranks=())
    job.begin(11, cycle=1, ranks=range(2))
    (incident,) = told(job).incidents
    assert (incident.culprits, incident.followers) == ((1,), (0,))


def test_a_restart_inside_the_processes():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(10, "iteration_interrupted", "iteration 0 of call 1 is interrupted: rank 1 failed: ValueError: x", rank=1)
    job.say(10.05, "iteration_restarted", "iteration 1 begins with all 2 ranks", iteration=1)
    job.stop(20, cycle=0, ranks=range(2), code_0=True)
    job.say(20.2, "job_succeeded")
    life = told(job)
    (incident,) = life.incidents
    assert (incident.trouble, incident.outcome, incident.cause) == (
        Trouble.EXCEPTION, Outcome.INSIDE, "rank 1 failed: ValueError: x"
    )  # fmt: skip
    assert ("interrupted", 0.05) in course(life)


def test_stacks_that_come_late_belong_to_the_last_incident():
    job = killed_and_hung()
    late = RecordedEvent("job", 99, BEGAN_NS + 11 * 10**9, "stacks_collected", "", 0, 0, "vm", None,
                         (("ranks 0", "a (b.py:1)"),))  # fmt: skip
    life = life_of(job.report(), [*job.events, late], now_ns=0)
    assert [group.ranks for group in life.incidents[0].stacks] == ["0"]


def test_the_loss_of_a_node():
    job = Told()
    for node, ranks in (("node1", (0, 1)), ("node2", (2, 3))):
        job.begin(2, cycle=0, ranks=ranks, node=node)
    job.decide(10, "node node2 is lost: nothing was heard for 2.5 s", cycle=0)
    job.stop(10.1, cycle=0, ranks=(0, 1), node="node1")
    for node, ranks in (("node1", (0, 1)), ("node3", (2, 3))):
        job.begin(12, cycle=1, ranks=ranks, node=node)
    life = told(job, JobState.RUNNING, now_s=20)
    (incident,) = life.incidents
    assert (incident.trouble, incident.node, incident.culprits) == (Trouble.NODE_LOST, "node2", ())
    assert incident.cause == "node node2 is lost: nothing was heard for 2.5 s"
    assert incident.phases[0].took_s == pytest.approx(2.5)
    assert {run.end for run in life.runs if run.node == "node2"} == {RunEnd.LOST}


def test_a_request_is_no_fault():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "restart_requested", "holdfast restart by ann")
    job.stop(5, cycle=0, ranks=range(2))
    job.begin(6, cycle=1, ranks=range(2))
    (incident,) = told(job, JobState.RUNNING, now_s=9).incidents
    assert (incident.trouble, incident.cause) == (Trouble.REQUESTED, "holdfast restart by ann")


def test_a_fault_that_leads_to_nothing_is_a_remark():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "node_suspect", "node vm is suspect: memory was in use")
    job.stop(10, cycle=0, ranks=range(2), code_0=True)
    job.say(11, "job_succeeded")
    life = told(job)
    assert life.incidents == ()
    assert [mark.kind for mark in life.marks] == ["node_suspect"]


def test_a_remark_of_long_ago_did_not_end_a_job_whose_supervisor_was_killed():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "node_suspect", "node vm is suspect: memory was in use")
    report = job.report(JobState.FAILED, ended_at_ns=BEGAN_NS + 1000 * 10**9)
    life = life_of(report, job.events, now_ns=0)
    assert life.incidents == ()
    assert life.running_share == pytest.approx(997.9 / 1000)
    assert [mark.kind for mark in life.marks] == ["node_suspect"]


def test_a_restart_long_after_a_remark_is_not_blamed_on_it():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "node_suspect", "node vm is suspect: memory was in use")
    job.say(500, "node_leaves", "node vm leaves the job as asked")
    job.stop(500, cycle=0, ranks=range(2))
    job.begin(501, cycle=1, ranks=range(2))
    assert told(job, JobState.RUNNING, now_s=600).incidents == ()


@pytest.mark.parametrize("last", ["fault_tolerated", "rank_replaced"])
def test_a_restart_long_after_a_fault_that_was_over_is_an_incident_of_its_own(last: str):
    """Faults of two nodes at once are tolerated one by one; an unfit rank is replaced after the others restarted."""
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "iteration_interrupted", "iteration 0 of call 1 is interrupted: rank 1 failed", rank=1)
    job.say(5.1, "iteration_restarted", "iteration 1 begins with 1 of 2 ranks", iteration=1)
    job.say(6, last)
    job.say(1000, "worker_failed", "rank 0 was killed by SIGKILL", rank=0)
    job.decide(1000, "rank 0 was killed by SIGKILL", cycle=0)
    job.stop(1000.1, cycle=0, ranks=(1,))
    job.begin(1001, cycle=1, ranks=range(2))
    incident = told(job, JobState.RUNNING, now_s=1100).incidents[-1]
    assert (incident.outcome, incident.noticed_ns) == (Outcome.RESTARTED, BEGAN_NS + 1000 * 10**9)


def test_a_remark_that_becomes_stale_takes_no_hang_with_it():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    job.say(5, "node_suspect", "node vm is suspect: memory was in use")
    job.say(100, "hang_detected", "rank 1 has been silent for 30.0 s (limit 30.0 s)", rank=1)
    job.say(130, "hang_explained", "rank 1 is in hang (train.py:118)", rank=1, details=[("culprits", "1")])
    job.decide(130, "rank 1 is in hang (train.py:118)", cycle=0)
    job.stop(130, cycle=0, ranks=range(2))
    job.begin(131, cycle=1, ranks=range(2))
    (incident,) = told(job, JobState.RUNNING, now_s=600).incidents
    assert (incident.trouble, incident.began_ns) == (Trouble.HANG, BEGAN_NS + 70 * 10**9)


def test_what_is_missing_is_said():
    job = killed_and_hung()
    assert told(job).gaps == ()
    job.events = job.events[5:]
    assert "the first 5 events are no longer recorded" in told(job).gaps[0]
    job.events = []
    assert told(job).gaps == ("no event of this job is recorded",)


def test_the_clock_of_a_node_that_is_far_off_does_not_tear_the_order():
    job = Told()
    job.begin(2, cycle=0, ranks=range(2))
    arrived_ns = BEGAN_NS + 10 * 10**9
    job.say(86_410, "worker_failed", "rank 1 was killed", rank=1, details=[("arrived_at_ns", str(arrived_ns))])
    job.decide(10.1, "rank 1 was killed", cycle=0)
    job.stop(10.2, cycle=0, ranks=(0,))
    job.begin(11, cycle=1, ranks=range(2))
    (incident,) = told(job, JobState.RUNNING, now_s=20).incidents
    assert incident.noticed_ns == arrived_ns


def _stopped_and_restarted(job: Told, at_s: float, *, ahead_s: float, gone: int | None = None) -> None:
    """Restarts vm, which leads, and node2, whose clock is ahead. `gone`: a rank that has ended before."""
    for node, ranks, by_s in ((NODE, (0, 1), 0.0), ("node2", (2, 3), ahead_s)):
        job.stop(at_s + by_s, cycle=0, ranks=[rank for rank in ranks if rank != gone], node=node)
        job.begin(at_s + 0.3 + by_s, cycle=1, ranks=ranks, node=node)


def _begun(*, ahead_s: float) -> Told:
    job = Told()
    job.begin(2, cycle=0, ranks=(0, 1))
    job.begin(2 + ahead_s, cycle=0, ranks=(2, 3), node="node2")
    return job


@pytest.mark.parametrize("ahead_s", [-4.9, -0.5, 0.0, 0.5, 4.9])
def test_one_fault_of_nodes_whose_clocks_differ_a_little_is_one_incident(ahead_s: float):
    job = _begun(ahead_s=ahead_s)
    cause = "rank 3 (pid 103) was killed by SIGKILL"
    job.say(20 + ahead_s, "worker_failed", cause, rank=3, node="node2")
    job.decide(20, cause, cycle=0)
    _stopped_and_restarted(job, 20, ahead_s=ahead_s, gone=3)
    life = told(job, JobState.RUNNING, now_s=60)
    (incident,) = life.incidents
    assert (incident.trouble, incident.outcome, incident.culprits, incident.node, incident.cause) == (
        Trouble.FAILURE, Outcome.RESTARTED, (3,), "node2", cause
    )  # fmt: skip
    ends = {run.rank: run.end for run in life.runs if run.cycle == 0}
    assert ends == {0: RunEnd.STOPPED, 1: RunEnd.STOPPED, 2: RunEnd.STOPPED, 3: RunEnd.FAILED}


def test_a_clock_that_is_a_little_behind_hides_no_silence():
    job = _begun(ahead_s=-1.0)
    job.say(20, "hang_detected", "rank 1 has been silent for 9.0 s (limit 9.0 s)", rank=1)
    job.say(20.9, "hang_explained", "rank 1 is in hang (train.py:118)", rank=1, details=[("culprits", "1")])
    job.decide(20.9, "rank 1 is in hang (train.py:118)", cycle=0)
    _stopped_and_restarted(job, 20.9, ahead_s=-1.0)
    (incident,) = told(job, JobState.RUNNING, now_s=60).incidents
    assert (incident.trouble, incident.began_ns) == (Trouble.HANG, BEGAN_NS + 11 * 10**9)


@pytest.mark.parametrize("ahead_s", [-0.5, 0.5])
def test_a_request_at_a_node_whose_clock_differs_a_little_is_no_fault(ahead_s: float):
    job = _begun(ahead_s=ahead_s)
    job.say(20 + ahead_s, "restart_requested", "holdfast restart by ann", node="node2")
    job.decide(20, "holdfast restart by ann", cycle=0)
    _stopped_and_restarted(job, 20, ahead_s=ahead_s)
    (incident,) = told(job, JobState.RUNNING, now_s=60).incidents
    assert (incident.trouble, incident.cause) == (Trouble.REQUESTED, "holdfast restart by ann")


def test_events_of_one_node_stay_in_order_of_time():
    job = killed_and_hung()
    job.say(10.55, "output_dropped", cycle=0)
    assert [event.sequence for event in in_order(job.events)] == [
        event.sequence for event in sorted(job.events, key=lambda event: event.at_ns)
    ]


def test_what_a_new_leader_is_told_of_the_past_keeps_its_time_and_an_outage_counts_from_its_beginning():
    job = Told()
    late = [("arrived_at_ns", str(BEGAN_NS + 30 * 10**9)), ("told_at_ns", str(BEGAN_NS + 30 * 10**9 - 1000))]
    lost = "node n1 of group rank 0 is lost: it has not reported its state to the new leader, "
    job.decide(29, f"{lost}and nothing was heard of the previous one for 9.0 s or more; restarting at once", cycle=0)
    job.say(2, "cycle_started", "cycle 0 starts", details=late)
    job.say(3, "worker_started", "rank 2 started", rank=2, details=late)
    job.say(3, "workers_started", "all workers have started", details=late)
    job.stop(29.1, cycle=0, ranks=(2,))
    job.begin(29.5, cycle=1, ranks=range(2))
    life = told(job, JobState.RUNNING, now_s=40)
    (incident,) = life.incidents
    assert (incident.began_ns, incident.noticed_ns) == (BEGAN_NS + 20 * 10**9, BEGAN_NS + 29 * 10**9)
    assert life.course[0].to_ns == BEGAN_NS + 2 * 10**9, "the job waited for its first start for 2 s"
    assert incident.cost_s(life.until_ns) > 9


def test_events_of_a_clock_that_is_far_off_are_placed_by_when_they_were_told():
    arrived_ns, told_ns = BEGAN_NS + 50 * 10**9, BEGAN_NS + 86_450 * 10**9
    job = Told()
    job.say(86_410, "worker_failed", "x", details=[("arrived_at_ns", str(arrived_ns)), ("told_at_ns", str(told_ns))])
    assert moment_ns(job.events[0]) == BEGAN_NS + 10 * 10**9


@pytest.mark.parametrize(
    "text",
    [
        "has been in section 'batch' for {age} (limit {limit})",
        "has been silent for {age} (limit {limit})",
        "executed no Python code for {age} (soft timeout {limit})",
    ],
)
def test_the_core_says_a_silence_as_it_is_read_here(text: str):
    assert silence_s(Silence(10.0, 2.0, text).reason(12.5)) == pytest.approx(2.5)
    assert silence_s(Silence(10.0, 0.05, text).reason(10.0)) == pytest.approx(0.05)


def test_other_durations_are_no_silence():
    assert silence_s("rank 1 has failed within 5 s in 11 iterations in a row") == 0
    assert silence_s("nothing was heard for 2.5 s; restarting at once") == 2.5


KINDS = (
    "job_submitted", "cycle_started", "worker_started", "workers_started", "worker_failed", "worker_exited",
    "hang_detected", "hang_explained", "stacks_collected", "restart_decided", "workers_stopping", "workers_stopped",
    "running_again", "iteration_interrupted", "iteration_restarted", "node_lost", "rank_replaced", "fault_tolerated",
    "root_cause_found", "job_failed", "job_succeeded", "something_new",
)  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, 3), st.none() | st.integers(0, 3), st.sampled_from(["vm", "node2"]),
        st.floats(0, 100), st.sampled_from(["", "rank 1 was killed", "silent for 3.0 s (limit 3.0 s)", "\x00</b>"]),
    ),
    max_size=40,
)  # fmt: skip


@given(
    EVENTS, st.sampled_from([JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED]), st.randoms(use_true_random=False)
)
def test_any_events_in_any_order_make_a_life(
    parts: list[tuple[str, int, int | None, str, float, str]], state: JobState, chance: random.Random
):
    """The course covers the whole time, no incident has a negative cost, and no process ends before it starts."""
    job = Told()
    for kind, cycle, rank, node, at_s, reason in parts:
        job.say(at_s, kind, reason, cycle=cycle, rank=rank, node=node)
    shuffled = list(job.events)
    chance.shuffle(shuffled)
    life = life_of(job.report(state), shuffled, now_ns=BEGAN_NS + 200 * 10**9)
    at_ns = life.began_ns
    for span in life.course:
        assert span.from_ns == at_ns < span.to_ns
        at_ns = span.to_ns
    assert at_ns == life.until_ns
    assert all(each.cost_s(life.until_ns) >= 0 for each in life.incidents)
    assert [each.number for each in life.incidents] == list(range(1, len(life.incidents) + 1))
    assert all(span.to_ns >= span.from_ns for each in life.incidents for span in each.phases)
    assert all(run.ended_ns is None or run.ended_ns >= run.started_ns for run in life.runs)
    assert life_of(job.report(state), job.events, now_ns=BEGAN_NS + 200 * 10**9) == life


def test_culprits_on_several_nodes_are_named_with_all_of_them():
    job = Told()
    for node, rank in (("n0", 0), ("n1", 1)):
        job.begin(0.0, cycle=0, ranks=[rank], node=node)
    job.say(5.0, "hang_detected", "rank 0 sent no heartbeat for 3.0 s (limit 3.0 s)", rank=0, node="n0")
    job.say(5.1, "hang_explained", "ranks 0 and 1 give no stack", node="n0", details=(("culprits", "0, 1"),))
    job.say(5.2, "job_failed", "ranks 0 and 1 give no stack; restarts used 3 of 3", node="n0")
    (incident,) = told(job, JobState.FAILED).incidents
    assert (incident.culprits, incident.nodes) == ((0, 1), ("n0", "n1"))


def test_of_several_nodes_one_that_did_not_lead_says_so():
    job = Told()
    job.say(0.0, "job_submitted", details=(("set nnodes", "2:2"), ("from nnodes", "--nnodes 2")))
    job.begin(0.5, cycle=0, ranks=[1])
    job.say(8.9, "worker_failed", "rank 1 (pid 101) was killed by SIGKILL", rank=1)
    job.say(9.0, "job_failed", "rank 1 (pid 101) was killed by SIGKILL; restarts used 3 of 3")
    life = told(job, JobState.FAILED)
    assert life.gaps == (
        "this is what vm has recorded: its own part, and perhaps that of nodes that led; the last of these has "
        "recorded the whole: run holdfast report job there",
    )
    assert life.restarts_used == 3
