"""Which state and exit code does a stopped job have?"""

from supervisor.core.facts import JobState, Verdict
from supervisor.core.stop_verdict import has_left, left_verdict, stopped_verdict, was_said


def test_stops() -> None:
    assert stopped_verdict(0, "the supervisor ends", all_succeeded=True).exit_code == 1
    by_kim = stopped_verdict(0, "by kim", all_succeeded=True, final_code=93)
    assert by_kim == Verdict(JobState.STOPPED, 93, "by kim")
    assert stopped_verdict(15, "signalled", all_succeeded=False) == Verdict(JobState.STOPPED, 143, "signalled")
    assert stopped_verdict(15, "signalled", all_succeeded=True).exit_code == 0


def test_a_request_with_what_it_waits_for_has_said_who_stopped_the_job() -> None:
    assert was_said("holdfast run got SIGINT", "holdfast run got SIGINT")
    assert was_said("holdfast run got SIGINT: rank 0 has 30 s to end", "holdfast run got SIGINT")
    assert not was_said("", "holdfast run got SIGINT")
    assert not was_said("holdfast stop", "holdfast run got SIGINT")


def test_only_a_node_that_has_left_ends_a_stopped_job_with_0() -> None:
    assert has_left(left_verdict("as asked"))
    assert not has_left(stopped_verdict(15, "signalled", all_succeeded=True))
    assert not has_left(stopped_verdict(0, "by kim", all_succeeded=True))
