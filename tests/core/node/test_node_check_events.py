"""What is said about a round of checks, and when a check without a result is reported again."""

from __future__ import annotations

from supervisor.core.node.node_check_events import NodeCheckEvents
from supervisor.core.node_check_facts import Health, HealthFinding

EVENTS = NodeCheckEvents("job", "a", 3)
WELL = HealthFinding("nvhcd", Health.HEALTHY)
SILENT = HealthFinding("nvhcd", Health.UNANSWERED, "no answer within 5 s")
SKIPPED = HealthFinding("nvhcd", Health.SKIPPED, "there is no socket")
ILL = HealthFinding("disk", Health.UNHEALTHY, "/b can't be read")

Told = tuple[tuple[str, Health], ...]


def kinds(finding: HealthFinding, told: Told = ()) -> tuple[list[str], Told]:
    said, told = EVENTS.round((finding,), told)
    assert all(each.job_id == "job" and each.event.cycle == 3 for each in said)
    return [each.event.kind for each in said], told


def test_a_check_without_a_result_is_reported_again_only_after_a_result() -> None:
    first, told = kinds(SILENT)
    assert first == ["node_checked", "node_check_unanswered"]
    for _ in range(3):
        again, told = kinds(SILENT, told)
        assert again == ["node_checked"]
    _, told = kinds(WELL, told)
    assert told == ()
    assert kinds(SILENT, told)[0] == first


def test_a_check_that_is_skipped_after_it_did_not_answer_is_another_report() -> None:
    _, told = kinds(SILENT)
    assert kinds(SKIPPED, told)[0] == ["node_checked", "node_check_skipped"]


def test_an_unhealthy_node_is_reported_in_each_round() -> None:
    _, told = kinds(ILL)
    assert kinds(ILL, told)[0] == ["node_checked", "node_unhealthy"]


def test_between_two_cycles_only_changes_are_reported() -> None:
    assert EVENTS.changes((ILL,), (ILL,)) == ()
    (change,) = EVENTS.changes((), (ILL,))
    assert change.event.reason == "a check of node a changes: disk is unhealthy: /b can't be read"
    assert EVENTS.changes((), (WELL,)) == ()


def test_a_recovery_is_told_under_the_names_that_it_has() -> None:
    silent = HealthFinding("gpu", Health.UNANSWERED, "NVML has not answered within 5 s")
    first, second = (HealthFinding("gpu", Health.HEALTHY, subject=f"GPU {index}") for index in range(2))
    (told,) = EVENTS.changes((silent,), (first,))
    assert (told.event.kind, told.event.reason) == (
        "node_check_changed", "a check of node a changes: gpu GPU 0 is healthy"
    )  # fmt: skip
    assert len(EVENTS.changes((silent, first), (first, second))) == 1
    assert EVENTS.changes((first,), (first, second)) == ()
