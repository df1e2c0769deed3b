"""Rows: what a user feels of a kill, the time until the first new step, in scripts whose own start takes long."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from tests.benchmarks.bench import Bench
from tests.benchmarks.launch import Run, say
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import JobOptions, Subject

OPTIONS = JobOptions(world_size=2)
COMPILED_LIMIT_S = 240.0  # the compiler takes most of a minute on a busy machine
LEARNED_AFTER_S = 20.0  # what the workers import has been loaded for the next ones by then


def measure_compiled(bench: Bench) -> list[Row]:
    return [_row(bench, "compiled", "torch.compile of a model in DDP")]


def measure_trainer(bench: Bench) -> list[Row]:
    if find_spec("transformers") is None:
        say("    transformers is not installed; install the dependency group e2e")
        return []
    return [_row(bench, "trainer", "a transformers Trainer with its checkpoints")]


def _row(bench: Bench, key: str, script: str) -> Row:
    row = Row(
        f"first_step_{key}",
        Group.SPEED,
        f"{script}: rank 1 of 2 is killed → the first new step of both ranks has ended",
        Unit.SECONDS,
        Target(share_of={"torchrun_tuned": 1 / 5}),
        notes=[f"The kill comes {LEARNED_AFTER_S:g} s after the first steps. Compiled code is kept on disk by torch."],
    )

    def once(subject: Subject) -> Mapping[str, float]:
        with (
            TemporaryDirectory(prefix="bench-") as compiled,
            Run(subject, row.key, OPTIONS, variables={"TORCHINDUCTOR_CACHE_DIR": compiled}) as run,
        ):
            run.await_events("step", OPTIONS.world_size, cycle=0, limit_s=COMPILED_LIMIT_S)
            time.sleep(LEARNED_AFTER_S)
            return {row.key: restart_s(run, ready="step", recovered="step")}

    bench.fill([row], {**bench.counts(3, only=("torchrun_tuned", "reference")), "holdfast": bench.runs(5)}, once)
    return row
