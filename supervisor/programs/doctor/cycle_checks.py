"""Would this node pass the checks that run before each cycle of the job?"""

from __future__ import annotations

import anyio

from supervisor.config.job_spec import JobSpec
from supervisor.core import gpu_verdict, nic_verdict, node_check_facts, nvhcd_verdict, storage_verdict
from supervisor.core.node_check_facts import CheckPlan, Health
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.health.check_probes import NodeChecks
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding

PATIENCE_S = 30.0  # a job waits longer for its health service; here a person waits
UNHEALTHY_WHY = "this node would leave the job before its first cycle"
SILENT_WHY = (
    "a check without an answer excludes no node, except one of storage or the health service if the policy is strict; "
    "what it looks for is unknown"
)
REMEDIES = {
    nvhcd_verdict.CHECK: "systemctl status nvhcd, or the service that serves the socket",
    storage_verdict.CHECK: "ls -ld the path, then findmnt and dmesg",
    gpu_verdict.CHECK: "nvidia-smi -q, then dmesg | grep -i xid",
    nic_verdict.CHECK: "ibstat, then the cable and the switch port",
}


def look(spec: JobSpec, node: str) -> list[DoctorFinding]:
    """Runs each check once, as a job's supervisor would."""
    area = Area("checks")
    plans = spec.health.plans(node)
    if not plans:
        area.skip("node", "the job asks for none: write its options behind --, such as --ft-node-health-check-endpoint")
        return area.findings
    for found in anyio.run(_run_all, spec, plans):
        _tell(area, found)
    return area.findings


async def _run_all(spec: JobSpec, plans: tuple[CheckPlan, ...]) -> list[node_check_facts.HealthFinding]:
    gpus = NodeGpus(worker_socket="")
    checks = NodeChecks(gpus.probes())
    found: dict[str, tuple[node_check_facts.HealthFinding, ...]] = {}

    async def run(plan: CheckPlan) -> None:
        patience_s = min(PATIENCE_S, plan.deadline_s)
        late, reason = plan.late, f"it has not answered within {patience_s:g} s"
        if patience_s < plan.deadline_s:
            late, reason = Health.UNANSWERED, f"{reason}; a job waits for {plan.deadline_s:g} s"
        found[plan.name] = (node_check_facts.HealthFinding(plan.name, late, reason, patience_s),)
        with anyio.move_on_after(patience_s):
            found[plan.name] = await checks.run(spec, plan.name, lambda _: None)

    try:
        async with anyio.create_task_group() as tasks:
            for plan in plans:
                tasks.start_soon(run, plan)
    finally:
        checks.close()
        await gpus.aclose()
    return [each for plan in plans for each in found[plan.name]]


def _tell(area: Area, found: node_check_facts.HealthFinding) -> None:
    remedy = REMEDIES[found.check]
    match found.health:
        case Health.HEALTHY:
            area.ok(
                found.name, f"healthy, {found.took_s * 1000:.1f} ms" + (f"; {found.reason}" if found.reason else "")
            )
        case Health.UNHEALTHY:
            area.problem(found.name, found.reason, why=UNHEALTHY_WHY, remedy=remedy)
        case Health.UNANSWERED | Health.SUSPECT:
            area.warn(found.name, found.reason, why=SILENT_WHY, remedy=remedy)
        case Health.SKIPPED:
            area.skip(found.name, found.reason or "this node has nothing of the kind")
