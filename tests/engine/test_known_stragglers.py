"""Reports show slow ranks while the job runs and this node leads it."""

from __future__ import annotations

from supervisor.config import JobSpec
from supervisor.core.facts import JobState, Verdict
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.engine.job_record import JobRecord
from supervisor.engine.known_stragglers import KnownStragglers

SLOW = (Straggler("forward", "n0", (1,), False, 2.0, 0.2, 0.1, 4, "rank 1 on node n0 is slow"),)


def record(job_id: str = "j") -> JobRecord:
    return JobRecord(JobSpec(job_id, ("t.py",)), {}, 5, "/logs")


def test_slow_ranks_are_shown_while_this_node_leads_that_run_of_the_job() -> None:
    led = {"j"}
    slow, job = KnownStragglers(led.__contains__), record()
    assert slow.of(job) == ()
    slow.note(job, SLOW)
    assert slow.of(job) == SLOW
    assert slow.of(record()) == ()  # another run with the same id
    led.clear()
    assert slow.of(job) == ()


def test_an_ended_job_has_no_slow_ranks_and_is_forgotten_with_the_next() -> None:
    slow, job, other = KnownStragglers(lambda _: True), record(), record("other")
    slow.note(job, SLOW)
    job.verdict = Verdict(JobState.SUCCEEDED, 0, "all ranks ended")
    assert slow.of(job) == ()
    slow.note(other, SLOW)
    job.verdict = None
    assert (slow.of(job), slow.of(other)) == ((), SLOW)
