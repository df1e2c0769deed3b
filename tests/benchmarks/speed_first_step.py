"""Rows: what a user feels of a kill, the time until the first new step, in scripts whose own start takes long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from tests.benchmarks.bench import Bench
from tests.benchmarks.launch import Run, say
from tests.benchmarks.rows import OURS, Group, Row, Target, Unit
from tests.benchmarks.speed_restart import draw, restart_s
from tests.benchmarks.subjects import JobOptions, Subject
from tests.benchmarks.waterfall import Phase, middle, recovery

OPTIONS = JobOptions(world_size=2)
LIMIT_S = 240.0  # the compiler takes most of a minute on a busy machine
LATER_S = 30.0


def measure_compiled(bench: Bench) -> list[Row]:
    notes = ["The folder of compiled code is empty at the start; torch keeps what the first cycle compiled in it."]
    return _measure(bench, "compiled", "torch.compile of a model in DDP", 1 / 3, notes)


def measure_trainer(bench: Bench) -> list[Row]:
    return _measure_with(bench, "transformers", "trainer", "transformers' Trainer, from its checkpoint", 1 / 5)


def measure_lightning(bench: Bench) -> list[Row]:
    return _measure_with(bench, "lightning", "lightning", "Lightning's Trainer with DDP, from its checkpoint", 1 / 5)


def _measure_with(bench: Bench, package: str, key: str, script: str, share: float) -> list[Row]:
    if find_spec(package) is None:
        say(f"    {package} is not installed; install the dependency group e2e")
        return []
    return _measure(bench, key, script, share, [])


def _measure(bench: Bench, key: str, script: str, share: float, notes: list[str]) -> list[Row]:
    """Kills a rank at two moments: when what the workers import has been loaded ahead, and before."""
    later = Row(
        f"first_step_{key}",
        Group.SPEED,
        f"{script}: rank 1 of 2 is killed {LATER_S:g} s after the first step → both ranks' first new step",
        Unit.SECONDS,
        Target(share_of={"torchrun_tuned": share}),
        notes=notes,
    )
    soon = Row(
        f"first_step_{key}_soon",
        Group.SPEED,
        "the same, killed within a second of the first step",
        Unit.SECONDS,
        Target(share_of={"torchrun_tuned": 1.0}),
    )
    recoveries: dict[str, list[list[Phase]]] = {later.key: [], soon.key: []}

    def one(subject: Subject, row: Row, after_s: float) -> float:
        with (
            TemporaryDirectory(prefix="bench-") as compiled,
            Run(subject, f"first_step_{key}", OPTIONS, variables={"TORCHINDUCTOR_CACHE_DIR": compiled}) as run,
        ):
            run.await_events("step", OPTIONS.world_size, cycle=0, limit_s=LIMIT_S)
            time.sleep(after_s)
            took_s = restart_s(run, ready="step", recovered="step", limit_s=LIMIT_S)
            if subject.key == OURS:
                recoveries[row.key].append(recovery(run, "step"))
        return took_s

    def once(subject: Subject) -> Mapping[str, float]:
        return {later.key: one(subject, later, LATER_S), soon.key: one(subject, soon, 0.0)}

    bench.fill([later, soon], bench.counts(3, only=("torchrun_tuned", OURS)), once)
    draw(later, recoveries[later.key])
    draw(soon, recoveries[soon.key])
    for row in (later, soon):
        row.notes += [f"ours, median run: {_told(phases)}" for phases in [middle(recoveries[row.key])] if phases]
    return [later, soon]


def _told(phases: Sequence[Phase]) -> str:
    return ", ".join(f"{phase.name} {phase.ended_s - phase.began_s:.3f} s" for phase in phases)
