"""The checks that a job requests are run, and judged by its policy."""

from __future__ import annotations

from pathlib import Path

from supervisor.config.job_spec import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from supervisor.edges.machine.health.check_probes import NodeChecks


async def test_a_service_that_is_not_there_is_judged_by_the_jobs_policy(tmp_path: Path) -> None:
    checks = NodeChecks()
    for policy, health in (
        (HealthCheckPolicy.DOCUMENTED, Health.SKIPPED),
        (HealthCheckPolicy.STRICT, Health.UNHEALTHY),
    ):
        spec = JobSpec("j", ("x.py",), health=HealthChecks(str(tmp_path / "nvhcd.sock"), policy))
        (finding,) = await checks.run(spec, "nvhcd", list[object]().append)
        assert (finding.check, finding.health) == ("nvhcd", health)
        assert finding.took_s < 5
