"""64 real ranks on few cores: the accused rank's stack comes within the budget, and the notes count the rest."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import Evidence
from supervisor.edges.workers.stacks.stack_collector import StackCollector
from tests.edges.workers.stacks.many_ranks import many_ranks
from tests.edges.workers.worker_side import JOB_ID, Served, until

RANKS, HUNG = 64, 37
BUDGET_S = JobSpec(job_id="any", command=("train.py",), local_world_size=1).evidence_budget_s
TRIES = 3  # other tests need the cores, too


async def collect(
    served: Served, pids: list[int], collector: StackCollector, *, budget_s: float = BUDGET_S, accused: tuple[int, ...]
) -> Evidence:
    async def ask(rank: int, timeout_s: float) -> str | None:
        return await served.server.ask_stacks(JOB_ID, 0, rank, timeout_s=timeout_s)

    return await collector.collect(dict(enumerate(pids)), ask=ask, budget_s=budget_s, accused=accused)


def program(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def stack_of(rank: int, evidence: Evidence) -> str:
    return next((group.stack.splitlines()[-1] for group in evidence.groups if rank in group.ranks), "")


def taken(evidence: Evidence) -> int:
    return sum(len(group.ranks) for group in evidence.groups)


@pytest.mark.alone
@pytest.mark.parametrize("py_spy", ["real", "slow"])
async def test_the_hung_rank_of_64_is_seen_within_the_budget(tmp_path: Path, py_spy: str) -> None:
    slow = program(tmp_path / "py-spy", "exec sleep 600\n")
    collector = StackCollector(py_spy=slow if py_spy == "slow" else None)
    async with many_ranks(tmp_path, ranks=RANKS, hung=HUNG) as (served, pids):
        evidence, took_s = Evidence(), 0.0
        for _ in range(TRIES):
            began_s = time.monotonic()
            evidence = await collect(served, pids, collector, accused=(HUNG,))
            took_s = time.monotonic() - began_s
            if taken(evidence) < RANKS:
                assert evidence.notes[0] == f"stacks of {taken(evidence)} of {RANKS} ranks came within {BUDGET_S:g} s"
            if stack_of(HUNG, evidence).startswith("hold (") and took_s < 2 * BUDGET_S:
                break
        assert stack_of(HUNG, evidence).startswith("hold (")
        assert took_s < 2 * BUDGET_S
    await until(lambda: not collector.unreaped())


async def test_py_spy_looks_at_the_accused_first_and_runs_once_for_each_core(tmp_path: Path) -> None:
    """Each run of this py-spy prints its target and how many of them run."""
    log = tmp_path / "log"
    mine = program(
        tmp_path / "py-spy",
        f'mkdir -p {tmp_path}/runs; touch {tmp_path}/runs/$$; n=$(ls {tmp_path}/runs | wc -l); echo "$5 $n" >> {log}\n'
        f"sleep 0.1; rm {tmp_path}/runs/$$; echo no >&2; exit 1\n",
    )

    async def nobody(rank: int, timeout_s: float) -> str | None:
        return None

    cores = len(os.sched_getaffinity(0))
    pids = {rank: os.getpid() * 1000 + rank for rank in range(3 * cores)}
    evidence = await StackCollector(py_spy=mine).collect(pids, ask=nobody, budget_s=60.0, accused=(3, 99))
    lines = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert lines[0][0] == pids[3]
    assert {pid for pid, _ in lines} == set(pids.values())
    assert max(at_once for _, at_once in lines) <= cores
    assert evidence.notes[0] == f"stacks of 0 of {len(pids)} ranks came within 60 s"


async def test_missing_stacks_of_one_reason_are_one_note(tmp_path: Path) -> None:
    async def first_two(rank: int, timeout_s: float) -> str | None:
        return 'Thread 0x01 (most recent call first):\n  File "/a/x.py", line 3 in f\n' if rank < 2 else None

    denied = program(tmp_path / "py-spy", "echo 'Permission Denied: Try running again' >&2; exit 1\n")
    pids = {rank: os.getpid() for rank in (0, 1, 2, 3, 4, 7)}
    evidence = await StackCollector(py_spy=denied).collect(pids, ask=first_two, budget_s=60.0)
    count, missing = evidence.notes
    assert count == "stacks of 2 of 6 ranks came within 60 s"
    assert re.match(r"no stack of ranks 2-4, 7: Permission Denied: .*, and its client has not answered$", missing)
