"""What is known about a check of the node: its newest answer, or that it is late?"""

from __future__ import annotations

from supervisor.core.node.single_node_check import NodeCheckState, answer, begin, miss, note
from supervisor.core.node_check_facts import CheckPlan, Health, HealthFinding

WELL = HealthFinding("nic", Health.HEALTHY, subject="mlx5_0")
ILL = HealthFinding("nic", Health.UNHEALTHY, "the port is down", subject="mlx5_0")
UNTOLD = HealthFinding("nic", Health.UNANSWERED, "it can't be read", subject="mlx5_0")


def heard(plan: CheckPlan, *results: HealthFinding) -> list[HealthFinding]:
    """Returns what each counts for."""
    check_state, counted = NodeCheckState(plan), list[HealthFinding]()
    for now_s, each in enumerate(results):
        check_state = answer(begin(check_state, now_s), (each,), now_s)
        counted += check_state.findings
    return counted


def test_the_newest_answer_stands() -> None:
    assert heard(CheckPlan("nic", 1.0), WELL, ILL, UNTOLD, WELL) == [WELL, ILL, UNTOLD, WELL]


def test_what_a_late_look_has_found_so_far_stands_and_the_rest_is_late() -> None:
    begun = begin(NodeCheckState(CheckPlan("nic", 2.0, late=Health.UNHEALTHY)), 5.0)
    assert [each.health for each in miss(note(begun, (WELL, UNTOLD)), 7.0).findings] == [
        Health.HEALTHY,
        Health.UNHEALTHY,
    ]


def test_a_late_look_stands_until_it_answers() -> None:
    check_state = miss(begin(NodeCheckState(CheckPlan("nic", 2.0, period_s=9.0)), 5.0), 7.0)
    assert (check_state.is_awaited, check_state.late_at_s, check_state.due_s) == (False, None, None)
    assert [each.health for each in check_state.findings] == [Health.UNANSWERED]
    late = answer(check_state, (WELL,), 8.0)
    assert (late.findings, late.due_s, late.begun_s) == ((WELL,), 17.0, None)
