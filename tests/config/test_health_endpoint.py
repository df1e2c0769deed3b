"""Which sockets can be named, which are refused, and which plan does the check have?"""

from __future__ import annotations

import pytest

from supervisor.config.health_endpoint import parse_endpoint
from supervisor.config.node_check_plans import HealthChecks
from supervisor.config.values import ValueProblem
from supervisor.core.node_check_facts import Health, HealthCheckPolicy


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("./nvhcd.sock", "./nvhcd.sock"),
        ("unix:///var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("", ""),
    ],
)
def test_the_socket_of_an_endpoint(endpoint: str, path: str) -> None:
    assert parse_endpoint(endpoint) == path


@pytest.mark.parametrize(
    "endpoint", ["localhost:50051", "unix:/var/run/x", "unix://x", "http://h/p", "nvhcd.sock", "/" + "x" * 200]
)
def test_anything_else_is_refused_with_what_to_write(endpoint: str) -> None:
    with pytest.raises(ValueProblem) as refused:
        parse_endpoint(endpoint)
    assert refused.value.why
    assert "such as /var/run/nvhcd.sock" in refused.value.remedy


def test_only_a_strict_job_waits_for_a_service_that_has_left_its_last_call_unanswered() -> None:
    (strict,) = HealthChecks("/s", HealthCheckPolicy.STRICT).plans("n1")
    assert (strict.deadline_s, strict.late, strict.patience_s) == (135.0, Health.UNHEALTHY, None)
    (usual,) = HealthChecks("/s").plans("n1")
    assert (usual.deadline_s, usual.late, usual.patience_s) == (135.0, Health.UNANSWERED, 135.0)
