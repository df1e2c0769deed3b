"""What does the table of nodes show of a node that is lost?"""

from __future__ import annotations

from supervisor.cli.status import _node_row  # pyright: ignore[reportPrivateUsage]
from supervisor.core.facts import JobState
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport


def test_ranks_that_a_spare_has_taken_are_no_longer_those_of_the_lost_node():
    lost = JobNodeReport("b", "lost", reason="node b is lost", heard_at_ns=1, lost_at_ns=2, ranks=(2, 3))
    alone = JobReport("j", JobState.RESTARTING, 1, nodes=(lost,), ranks=(RankReport(2, 0, "b", "lost"),))
    assert _node_row(lost, alone, 3)[3] == "2-3"
    taken = JobReport("j", JobState.RUNNING, 1, nodes=(lost,), ranks=(RankReport(2, 0, "c", "running"),))
    assert _node_row(lost, taken, 3)[3] == "3"
