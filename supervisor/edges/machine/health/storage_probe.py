"""Which storage does a job want checked on this node, and what does each mount and path answer?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from supervisor.config.job_spec import JobSpec
from supervisor.core.node_check_facts import HealthCheckPolicy, HealthFinding
from supervisor.core.storage_verdict import (
    LUSTRE_HEALTH,
    MOUNT_DEADLINE_S,
    PATH_DEADLINE_S,
    Answered,
    Kind,
    Silent,
    Target,
    is_absent,
    judge,
    mounts,
    nothing_found,
)
from supervisor.edges.machine.health.path_probes import PathProbes
from supervisor.ports import timed_waits

MOUNTINFO = "/proc/self/mountinfo"
SO_FAR_S = 0.5  # for slow answers: nobody waits longer, unless the job is strict
TARGETS_MAX = 128


class StorageProbe:
    """Checks mounts and paths. See node_checks.Probe."""

    def __init__(self, *, mountinfo: str = MOUNTINFO, lustre_health: str = LUSTRE_HEALTH) -> None:
        self._mountinfo = Target(Kind.MOUNTS, mountinfo, MOUNT_DEADLINE_S)
        self._lustre = Target(Kind.TEXT, lustre_health, MOUNT_DEADLINE_S)
        self._probes = PathProbes()
        self._silent_since_s: dict[str, float] = {}  # by path: those that did not answer at the last look

    async def look(
        self, spec: JobSpec, report: Callable[[tuple[HealthFinding, ...]], None]
    ) -> tuple[HealthFinding, ...]:
        look = _Look(self._probes, self._silent_since_s, spec.health.policy, report)
        targets = [Target(Kind.ANY, path, PATH_DEADLINE_S) for path in spec.health.storage_paths]
        if spec.health.storage_mounts:
            targets += [self._lustre, self._mountinfo]
        look.expect(targets)
        async with anyio.create_task_group() as telling:
            telling.start_soon(look.tell_so_far)
            async with anyio.create_task_group() as parts:
                for target in targets:
                    parts.start_soon(look.at, target)
            telling.cancel_scope.cancel()
        return look.findings or (nothing_found(),)

    def close(self) -> None:
        self._probes.close()


class _Look:
    """One look at all targets."""

    def __init__(
        self,
        probes: PathProbes,
        silent_since_s: dict[str, float],
        policy: HealthCheckPolicy,
        report: Callable[[tuple[HealthFinding, ...]], None],
    ) -> None:
        self._probes = probes
        self._silent_since_s = silent_since_s
        self._policy = policy
        self._report = report
        self._expected: dict[str, Target] = {}  # by path: targets that have not answered
        self._found: dict[str, HealthFinding] = {}
        self._begun_s = anyio.current_time()
        self._tells = False

    @property
    def findings(self) -> tuple[HealthFinding, ...]:
        return tuple(self._found[path] for path in sorted(self._found))

    def expect(self, targets: Sequence[Target]) -> None:
        self._expected |= {target.path: target for target in targets}

    async def tell_so_far(self) -> None:
        """Reports the answers so far: a hanging path must not hold back those of others."""
        self._tell_if_enough()
        await timed_waits.pause(SO_FAR_S, why="what has not answered by then may hang")
        self._tells = True
        self._tell_if_enough()

    async def at(self, target: Target) -> None:
        begun_s = anyio.current_time()
        answer = await self._probes.look(target.kind, target.path, timeout_s=target.deadline_s)
        took_s = anyio.current_time() - begun_s
        if isinstance(answer, Silent):
            self._silent_since_s.setdefault(target.path, begun_s)
        else:
            self._silent_since_s.pop(target.path, None)
        if target.kind is Kind.MOUNTS and isinstance(answer, Answered):
            await self._at_mounts(target, answer)
            return
        del self._expected[target.path]
        self._found.pop(target.path, None)
        if not is_absent(target, answer):
            self._found[target.path] = judge(target, answer, self._policy, took_s=took_s)
        self._tell_if_enough()

    async def _at_mounts(self, mountinfo: Target, answer: Answered) -> None:
        known = {*self._expected, *self._found}
        found = [target for target in mounts(answer.text) if target.path not in known][:TARGETS_MAX]
        self.expect(found)
        del self._expected[mountinfo.path]
        self._found.pop(mountinfo.path, None)
        self._tell_if_enough()
        async with anyio.create_task_group() as looks:
            for target in found:
                looks.start_soon(self.at, target)

    def _tell_if_enough(self) -> None:
        """Reports once only paths that hung before are missing, or the time is up."""
        if not self._expected or not (self._tells or self._silent_since_s.keys() >= self._expected.keys()):
            return
        self._tells = True
        now_s = anyio.current_time()
        for path, target in self._expected.items():
            since_s = self._silent_since_s.get(path, self._begun_s)
            self._found[path] = judge(target, Silent(now_s - since_s), self._policy, took_s=now_s - self._begun_s)
        self._report(self.findings)
