"""Which state and exit code does a stopped job have?"""

from supervisor.core.facts import JobState, Verdict
from supervisor.core.stop_verdict import stopped_verdict


def test_stops() -> None:
    assert stopped_verdict(0, "by kim", all_succeeded=True) == Verdict(JobState.STOPPED, 1, "by kim")
    assert stopped_verdict(15, "signalled", all_succeeded=False) == Verdict(JobState.STOPPED, 143, "signalled")
    assert stopped_verdict(15, "signalled", all_succeeded=True).exit_code == 0
