"""Which checks does a job ask for on this node, when must each answer, and what waits for it?"""

from __future__ import annotations

import zlib

import msgspec

from supervisor.core import gpu_verdict, nic_verdict, nvhcd_verdict, storage_verdict
from supervisor.core.node_check_facts import CheckPlan, Health, HealthCheckPolicy

NVHCD_DEADLINE_S = 135.0  # the client gives up after 130
STORAGE_DEADLINE_S = 20.0  # each path has a deadline of its own below it
STORAGE_PATIENCE_S = 1.0
DEVICES_DEADLINE_S = 16.0  # the process that asks is given up before, even if it is started and then asked twice
STORAGE_PERIOD_S = 60.0  # between two cycles; all nodes of a job ask the same servers


class HealthChecks(msgspec.Struct, frozen=True):
    """The checks that this node has to pass before it joins a cycle."""

    nvhcd_socket: str = ""  # of the node's health service; "": it is not asked
    policy: HealthCheckPolicy = HealthCheckPolicy.DOCUMENTED
    storage_mounts: bool = False  # Lustre and NFS, as this node mounts them
    storage_paths: tuple[str, ...] = ()
    has_gpus: bool = False  # this node has a driver to ask
    has_network_cards: bool = False
    nic_states: bool = True
    nic_counters: bool = False
    link_state_template: str = ""  # path with {nic}; "": all ports of each card, where the kernel has them
    link_down_template: str = ""
    devices_period_s: float = 5.0  # between two looks at GPUs and cards while the job runs

    def plans(self, node: str) -> tuple[CheckPlan, ...]:
        """Returns a plan for each check that edges/machine/health/check_probes.py will run on this node."""
        late = Health.UNHEALTHY if self.policy is HealthCheckPolicy.STRICT else Health.UNANSWERED
        plans: list[CheckPlan] = []
        if self.nvhcd_socket:
            patience_s = None if self.policy is HealthCheckPolicy.STRICT else NVHCD_DEADLINE_S
            plans.append(CheckPlan(nvhcd_verdict.CHECK, NVHCD_DEADLINE_S, late=late, patience_s=patience_s))
        if self.storage_mounts or self.storage_paths:
            patience_s = None if self.policy is HealthCheckPolicy.STRICT else STORAGE_PATIENCE_S
            period_s = STORAGE_PERIOD_S * (0.75 + 0.5 * zlib.crc32(node.encode()) / 2**32)  # not all nodes at once
            plans.append(
                CheckPlan(
                    storage_verdict.CHECK, STORAGE_DEADLINE_S, late=late, patience_s=patience_s, period_s=period_s
                )
            )
        if self.has_gpus:
            plans.append(CheckPlan(gpu_verdict.CHECK, DEVICES_DEADLINE_S, period_s=self.devices_period_s))
        if self.has_network_cards and (self.nic_states or self.nic_counters):
            plans.append(CheckPlan(nic_verdict.CHECK, DEVICES_DEADLINE_S, period_s=self.devices_period_s))
        return tuple(plans)
