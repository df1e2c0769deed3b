"""Which state and exit code does a stopped job have?"""

from supervisor.core.facts import JobState, Verdict
from supervisor.core.stop_verdict import stopped_verdict, was_said


def test_stops() -> None:
    assert stopped_verdict(0, "by kim", all_succeeded=True) == Verdict(JobState.STOPPED, 1, "by kim")
    assert stopped_verdict(15, "signalled", all_succeeded=False) == Verdict(JobState.STOPPED, 143, "signalled")
    assert stopped_verdict(15, "signalled", all_succeeded=True).exit_code == 0


def test_a_request_with_what_it_waits_for_has_said_who_stopped_the_job() -> None:
    assert was_said("holdfast run got SIGINT", "holdfast run got SIGINT")
    assert was_said("holdfast run got SIGINT: rank 0 has 30 s to end", "holdfast run got SIGINT")
    assert not was_said("", "holdfast run got SIGINT")
    assert not was_said("holdfast stop", "holdfast run got SIGINT")
