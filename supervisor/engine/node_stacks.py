"""Where are this node's ranks of a job in their code now, for a hang verdict or for `holdfast stacks`?"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.hangs.hang_text import said_of
from supervisor.core.hangs.hung_rank_diagnosis import Pattern, by_state
from supervisor.core.node import node_messages
from supervisor.core.process_facts import RankFacts, RankLook
from supervisor.engine.job_record import JobRecord
from supervisor.ports.edges import StackSource, Workers

STACKS_FOR_PEOPLE_S = 2.0  # for `holdfast stacks`: a person may wait longer than a hang verdict does
KERNEL_WAIT_S = 1.0  # slow storage may hold a healthy rank in state D for a shorter time
_REMEDIES = {
    Pattern.STOPPED: "; `kill -CONT {pid}` continues it",
    Pattern.STATE_D: "; look at the storage or driver that it waits for: it may only be slow",
}


class NodeStacks:
    """Takes the stacks of the ranks on this node."""

    def __init__(self, *, workers: Workers, stacks: StackSource) -> None:
        self._workers = workers
        self._stacks = stacks

    def is_stopped(self, pid: int) -> bool:
        return self._stacks.is_stopped(pid)

    async def evidence(self, job: JobRecord, action: node_messages.CollectEvidence) -> Evidence:
        evidence = await self.collect(
            job, cycle=action.cycle, budget_s=action.budget_s, accused=action.accused, apart_s=action.apart_s
        )
        facts = tuple(self._with_sections(job, action.cycle, each) for each in evidence.facts)
        return msgspec.structs.replace(evidence, facts=facts)

    async def collect(
        self,
        job: JobRecord,
        *,
        cycle: int,
        budget_s: float,
        rank: int | None = None,
        accused: tuple[int, ...] = (),
        apart_s: float = 0.0,
        kernel_wait_s: float = 0.0,
    ) -> Evidence:
        """Returns the stacks of running ranks, accused ones first, within the budget."""
        first_rank, pids = job.first_rank, _pids(job, cycle, rank)

        async def ask(of_rank: int, timeout_s: float) -> str | None:
            return await self._workers.ask_stacks(job.spec.job_id, cycle, of_rank - first_rank, timeout_s=timeout_s)

        return await self._stacks.collect(
            pids, ask=ask, budget_s=budget_s, accused=accused, apart_s=apart_s, kernel_wait_s=kernel_wait_s
        )

    async def threads(self, job: JobRecord, *, cycle: int, budget_s: float) -> tuple[RankLook, ...]:
        """Returns where all threads of the ranks are that still run."""
        return await self._stacks.look(_pids(job, cycle), budget_s=budget_s)

    async def looked_at(self, job: JobRecord, *, rank: int | None, budget_s: float) -> Evidence:
        """Returns the same for a person, who also wants to know which processes do not run, whatever their stacks."""
        evidence = await self.collect(job, cycle=job.cycle, budget_s=budget_s, rank=rank, kernel_wait_s=KERNEL_WAIT_S)
        halted = tuple(note for each in evidence.facts if (note := _halted(job, each)))
        return msgspec.structs.replace(evidence, notes=(*halted, *evidence.notes))

    def _with_sections(self, job: JobRecord, cycle: int, facts: RankFacts) -> RankFacts:
        progress = self._workers.read_progress(job.spec.job_id, cycle, facts.rank - job.first_rank)
        sections = tuple(name for name, _ in progress.open_sections) if progress is not None else ()
        return msgspec.structs.replace(facts, sections=sections)


def _pids(job: JobRecord, cycle: int, rank: int | None = None) -> dict[int, int]:
    """Returns the processes of these ranks, or of all; none if the newest workers are of another cycle."""
    ranks = {job.first_rank + local_rank: pid for local_rank, pid in sorted(job.pids.items()) if job.runs(cycle)}
    return {each: pid for each, pid in ranks.items() if rank in (None, each)}


def _halted(job: JobRecord, facts: RankFacts) -> str:
    """Returns why this rank executes nothing, and what to do; "" if it may run.

    A hang verdict says the same, but calls a wait in the kernel a hang: it has watched the rank for longer.
    """
    pid = job.pids.get(facts.rank - job.first_rank)
    found = by_state(facts.process) if facts.process is not None and pid is not None else None
    if found is None:
        return ""
    remedy = _REMEDIES.get(found.pattern, "").format(pid=pid)
    clause = found.clause.replace("{hang}", f"{{have}} waited for {KERNEL_WAIT_S:g} s")
    return said_of((facts.rank,), f"(pid {pid}) {clause}") + remedy
