"""Rows: how long does a rank take to assign ranks by a Tree, in a job of many thousands?"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.bench import START_LIMIT_S, Bench
from tests.benchmarks.launch import RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import Family, Subject

WORKLOAD = Path(__file__).parent / "workloads" / "tree.py"
MODULES = {Family.REFERENCE: "nvidia_resiliency_ext.inprocess", Family.HOLDFAST: "worker_client.inprocess"}
SIZES = {"16k": (16_384, 1_024, 0.05), "100k": (100_000, 100, 0.2)}  # ranks, dead, seconds of a restart at most
BUILD_MAX_S = 0.5


def measure_tree(bench: Bench) -> list[Row]:
    return [row for key, (size, dead, limit_s) in SIZES.items() for row in _rows(bench, key, size, dead, limit_s)]


def _rows(bench: Bench, key: str, size: int, dead: int, restart_max_s: float) -> list[Row]:
    title = f"Tree of {size:,} ranks and 3 layers"
    restart = Row(
        f"tree_{key}",
        Group.SPEED,
        f"{title}, {dead:,} dead: one rank's assignment after a fault",
        Unit.SECONDS,
        Target(at_most=restart_max_s),
    )
    build = Row(
        f"tree_build_{key}",
        Group.SPEED,
        f"{title}: one rank's first assignment, the exchange apart",
        Unit.SECONDS,
        Target(at_most=BUILD_MAX_S),
    )
    outcomes: dict[str, str] = {}

    def once(subject: Subject) -> Mapping[str, float]:
        build_s, restart_s, outcomes[subject.key] = _assign(subject, size, dead)
        return {restart.key: restart_s, build.key: build_s}

    bench.fill([restart, build], bench.counts(5, only=("reference", "holdfast")), once)
    if len(set(outcomes.values())) > 1:
        restart.notes.append(f"the subjects came to different results: {outcomes}")
    return [restart, build]


def _assign(subject: Subject, size: int, dead: int) -> tuple[float, float, str]:
    """Returns the seconds of the first call and of the restart, and the outcome."""
    python = subject.program.parent / "python"
    command = [str(python), str(WORKLOAD), MODULES[subject.family], str(size), str(dead)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"{subject.label}: no result after {error.timeout:g} s") from error
    if done.returncode:
        raise RunFailedError(f"{subject.label}: {done.stderr.strip().splitlines()[-1]}")
    build_s, restart_s, outcome = done.stdout.split(maxsplit=2)
    return float(build_s), float(restart_s), outcome.strip()
