"""What is known about a check of the node: its newest answer, or that it is late?"""

from __future__ import annotations

from supervisor.core.node.check_standing import Standing, answer, begin, miss, note
from supervisor.core.node_health import CheckPlan, Finding, Health

WELL = Finding("nic", Health.HEALTHY, subject="mlx5_0")
ILL = Finding("nic", Health.UNHEALTHY, "the port is down", subject="mlx5_0")
UNTOLD = Finding("nic", Health.UNANSWERED, "it can't be read", subject="mlx5_0")


def heard(plan: CheckPlan, *results: Finding) -> list[Finding]:
    """Returns what each counts for."""
    standing, counted = Standing(plan), list[Finding]()
    for now_s, each in enumerate(results):
        standing = answer(begin(standing, now_s), (each,), now_s)
        counted += standing.findings
    return counted


def test_the_newest_answer_stands() -> None:
    assert heard(CheckPlan("nic", 1.0), WELL, ILL, UNTOLD, WELL) == [WELL, ILL, UNTOLD, WELL]


def test_what_a_late_look_has_found_so_far_stands_and_the_rest_is_late() -> None:
    begun = begin(Standing(CheckPlan("nic", 2.0, late=Health.UNHEALTHY)), 5.0)
    assert [each.health for each in miss(note(begun, (WELL, UNTOLD)), 7.0).findings] == [
        Health.HEALTHY,
        Health.UNHEALTHY,
    ]


def test_a_late_look_stands_until_it_answers() -> None:
    standing = miss(begin(Standing(CheckPlan("nic", 2.0, period_s=9.0)), 5.0), 7.0)
    assert (standing.is_awaited, standing.late_at_s, standing.due_s) == (False, None, None)
    assert [each.health for each in standing.findings] == [Health.UNANSWERED]
    late = answer(standing, (WELL,), 8.0)
    assert (late.findings, late.due_s, late.begun_s) == ((WELL,), 17.0, None)
