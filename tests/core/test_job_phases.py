"""What do people see of each phase?"""

import pytest

from supervisor.core import job_phases as phases
from supervisor.core.facts import Assignment, JobRules, JobState, Verdict

VERDICT = Verdict(JobState.FAILED, 1, "x")


@pytest.mark.parametrize(
    ("phase", "first", "later"),
    [
        (phases.Pending(), "pending", "restarting"),
        (phases.Rendezvous(), "rendezvous", "restarting"),
        (phases.AwaitingStore(Assignment(0)), "starting", "starting"),
        (phases.Starting(), "starting", "starting"),
        (phases.Running(), "running", "running"),
        (phases.Finished(), "running", "running"),
        (phases.Stopping(phases.Rejoin(announced=True)), "restarting", "restarting"),
        (phases.Stopping(phases.StartNext(Assignment(1), "x")), "restarting", "restarting"),
        (phases.Stopping(phases.Leave()), "stopping", "stopping"),
        (phases.Down(), "restarting", "restarting"),
        (phases.Stopped(), "stopping", "stopping"),
        (phases.Closing(VERDICT), "failed", "failed"),
        (phases.Ended(VERDICT), "failed", "failed"),
    ],
)
def test_shown_state(phase: phases.Phase, first: str, later: str) -> None:
    rules = JobRules("job", 1)
    assert phases.shown_state(phases.State("a", rules, phase)) == first
    assert phases.shown_state(phases.State("a", rules, phase, cycle=2)) == later
