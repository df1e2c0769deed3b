"""How much do findings of a check count if one result alone does not count?"""

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


def test_without_hysteresis_each_result_counts() -> None:
    assert heard(CheckPlan("nic", 1.0), WELL, ILL, UNTOLD, WELL) == [WELL, ILL, UNTOLD, WELL]


def test_what_flaps_is_unhealthy_only_after_so_many_results_in_a_row() -> None:
    plan = CheckPlan("nic", 1.0, unhealthy_after=3)
    flapping = heard(plan, ILL, ILL, WELL, ILL, ILL, WELL)
    assert {each.health for each in flapping} == {Health.HEALTHY}
    assert flapping[1].reason == "the port is down (2 of the 3 times in a row that count)"
    assert [each.health for each in heard(plan, ILL, ILL, ILL)][-1] is Health.UNHEALTHY


def test_what_was_unhealthy_is_healthy_only_after_so_many_results_in_a_row() -> None:
    counted = heard(CheckPlan("nic", 1.0, healthy_after=3), ILL, WELL, WELL, WELL, WELL)
    assert [each.health for each in counted] == [Health.UNHEALTHY] * 3 + [Health.HEALTHY] * 2
    assert counted[2].reason == "the port is down; healthy again 2 of 3 times"


def test_things_that_one_check_looks_at_are_counted_apart() -> None:
    plan = CheckPlan("nic", 1.0, unhealthy_after=2)
    other = Finding("nic", Health.UNHEALTHY, "the port is down", subject="mlx5_1")
    standing = Standing(plan)
    for now_s, findings in enumerate([(ILL,), (WELL, other), (ILL, other)]):
        standing = answer(begin(standing, now_s), findings, now_s)
    assert [each.health for each in standing.findings] == [Health.HEALTHY, Health.UNHEALTHY]


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
