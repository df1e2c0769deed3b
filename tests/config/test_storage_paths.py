"""Which paths are checked, and which plan does their check have?"""

from __future__ import annotations

import pytest

from supervisor.config.node_check_plans import HealthChecks
from supervisor.config.storage_paths import PATHS, PATHS_MAX, parse_paths
from supervisor.config.values import ValueProblem
from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from tests.config.runs import request


def test_paths_stand_between_commas_each_once() -> None:
    assert parse_paths("/data/checkpoints, /mnt/dataset,/data/checkpoints,") == ("/data/checkpoints", "/mnt/dataset")
    assert parse_paths("") == ()
    assert PATHS.parse(PATHS.show(("/a", "/b"))) == ("/a", "/b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("data,/mnt", "'data' is not an absolute path"),
        ("/a\0b", "no NUL"),
        (" ,,", "it names no path"),
        ("/" + "x" * 5000, "at most 4095 bytes"),
        (",".join(f"/p{number}" for number in range(PATHS_MAX + 1)), "more than 64"),
    ],
)
def test_what_is_no_absolute_path_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueProblem, match=why):
        parse_paths(text)


def test_the_flags_reach_the_job() -> None:
    asked = request("--ft-enable-dist-storage-healthcheck", "true", "--ft_storage_health_check_path", "/a,/b", "t.py")
    assert asked.spec.health == HealthChecks(storage_mounts=True, storage_paths=("/a", "/b"))
    assert asked.warnings == ()
    assert request("--ft-enable-dist-storage-healthcheck", "t.py").spec.health.storage_mounts


def test_a_strict_job_waits_for_its_storage_and_another_one_is_patient() -> None:
    (strict,) = HealthChecks(storage_mounts=True, policy=HealthCheckPolicy.STRICT).plans("n1")
    assert (strict.name, strict.late, strict.patience_s) == ("storage", Health.UNHEALTHY, None)
    (patient,) = HealthChecks(storage_paths=("/a",)).plans("n1")
    assert (patient.late, patient.patience_s) == (Health.UNANSWERED, 1.0)
    assert HealthChecks().plans("n1") == ()


def test_the_nodes_of_a_job_do_not_all_ask_their_servers_at_once() -> None:
    periods_s = {
        plan.period_s or 0.0 for each in range(50) for plan in HealthChecks("", storage_mounts=True).plans(f"n{each}")
    }
    assert len(periods_s) == 50
    assert all(45.0 <= each < 75.0 for each in periods_s)
