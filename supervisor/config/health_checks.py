"""Which checks does a job ask for on this node, until when must each answer, and what waits for it?"""

from __future__ import annotations

import msgspec

from supervisor.core import nvhcd_verdict
from supervisor.core.node_health import CheckPlan, Health, HealthCheckPolicy

NVHCD_DEADLINE_S = 135.0  # the client gives up after 131


class HealthChecks(msgspec.Struct, frozen=True):
    """What this node has to prove before it joins a cycle."""

    nvhcd_socket: str = ""  # of the node's health service; "": it is not asked
    policy: HealthCheckPolicy = HealthCheckPolicy.DOCUMENTED

    def plans(self) -> tuple[CheckPlan, ...]:
        """One for each check that edges/machine/health/node_checks.py will be asked for."""
        late = Health.UNHEALTHY if self.policy is HealthCheckPolicy.STRICT else Health.UNANSWERED
        plans: list[CheckPlan] = []
        if self.nvhcd_socket:
            plans.append(CheckPlan(nvhcd_verdict.CHECK, NVHCD_DEADLINE_S, late=late))
        return tuple(plans)
