"""`python -m tests.benchmarks`: Holdfast beside torchrun and the reference product; writes docs/benchmarks.md."""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.benchmarks import (
    cluster_scale,
    cost,
    cost_commit,
    cost_inprocess,
    endurance_frames,
    endurance_inprocess,
    endurance_output,
    endurance_supervisor,
    log_path,
    log_server,
    processes,
    reference_product,
    reliability,
    report,
    runs,
    speed_assignment,
    speed_detection,
    speed_first_step,
    speed_gpu_memory,
    speed_health,
    speed_inprocess,
    speed_inprocess_nodes,
    speed_late_torch,
    speed_restart,
    speed_two_nodes,
    subjects,
    useful_time,
)
from tests.benchmarks.bench import Bench
from tests.benchmarks.conditions import Conditions
from tests.benchmarks.launch import say
from tests.benchmarks.rows import Row, judge
from tests.benchmarks.subjects import Family, Subject

ROOT = Path(__file__).parent.parent.parent

MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "restart": speed_restart.measure_restart,
    "restart-torch": speed_restart.measure_restart_torch,
    "package": speed_late_torch.measure_package,
    "lazy": speed_late_torch.measure_lazy,
    "first-step-compiled": speed_first_step.measure_compiled,
    "first-step-trainer": speed_first_step.measure_trainer,
    "first-step-lightning": speed_first_step.measure_lightning,
    "two-nodes": speed_two_nodes.measure_two_nodes,
    "stubborn": speed_restart.measure_stubborn,
    "health": speed_health.measure_health,
    "gpu-memory": speed_gpu_memory.measure_gpu_memory,
    "exit": speed_detection.measure_exit,
    "hang": speed_detection.measure_hang,
    "tree": speed_assignment.measure_tree,
    "inprocess-exception": speed_inprocess.measure_exception,
    "inprocess-gloo": speed_inprocess.measure_gloo,
    "inprocess-kill": speed_inprocess.measure_kill,
    "inprocess-silence": speed_inprocess.measure_silence,
    "inprocess-two-nodes": speed_inprocess_nodes.measure_two_nodes,
    "inprocess-nothing": speed_inprocess.measure_nothing,
    "footprint": cost.measure_footprint,
    "monitoring": cost.measure_monitoring,
    "calls": cost.measure_calls,
    "import": cost.measure_import,
    "commit": cost_commit.measure_commit,
    "inprocess-cost": cost_inprocess.measure_wrapper,
    "frames": endurance_frames.measure_frames,
    "output": endurance_output.measure_output,
    "supervisor-killed": endurance_supervisor.measure_kills,
    "log-flood": log_path.measure_flood,
    "log-delay": log_path.measure_delay,
    "log-server": log_server.measure_log_server,
    "nodes": cluster_scale.measure_rendezvous,
    "nodes-many": cluster_scale.measure_many,
    "nodes-relays": cluster_scale.measure_by_relays,
    "inprocess-rounds": endurance_inprocess.measure_rounds,
    "useful-time-kills": useful_time.measure_kills,
    "useful-time-hangs": useful_time.measure_hangs,
    "useful-time-wrapped-kills": useful_time.measure_wrapped_kills,
    "useful-time-wrapped-hangs": useful_time.measure_wrapped_hangs,
    "reliability": reliability.measure_reliability,  # the longest runs last, so that an interrupted run has the others
}


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    complete = not given.only and not given.quick and not given.subjects
    folder: Path = given.out or (ROOT / "docs" if complete or given.keep else ROOT / "build" / "benchmarks")
    try:
        before, labels_before = runs.read(folder / "benchmarks.json") if given.keep else ([], {})
    except ValueError as error:
        say(str(error))
        return 1
    signal.signal(signal.SIGTERM, _leave)  # unwinds every `with`, so that all processes are ended
    processes.adopt_orphans()
    _compile_ours()
    conditions = Conditions.now()
    conditions.quick, conditions.only = given.quick, given.only
    measured = _subjects(given.python_reference, given.subjects, conditions)
    labels = labels_before | {subject.key: subject.label for subject in measured}
    bench = Bench([s for s in measured if s.key not in conditions.absent], given.quick, given.runs)
    started_s = time.monotonic()
    not_ours_s = processes.machine_cpu_s() - processes.own_cpu_s()
    run = runs.Run(conditions)
    for name in given.only or MEASUREMENTS:
        say(f"{time.monotonic() - started_s:6.1f} s  {name}")
        run.rows += MEASUREMENTS[name](bench)
        conditions.took_s = time.monotonic() - started_s
        others_s = processes.machine_cpu_s() - processes.own_cpu_s() - not_ours_s
        conditions.others_cores = round(others_s / conditions.took_s, 3)
        # Written after each one, so that an interrupted run leaves what it has.
        report.write(folder, runs.joined(before, run), labels)
    say(f"{conditions.took_s:6.1f} s  written: {folder}/benchmarks.md and .json")
    unmet = [f"{row.title}: {found.wanted}" for row in run.rows for found in judge(row, labels) if found.met is False]
    say("\n".join(["targets not met:", *unmet]) if unmet else "all targets that could be measured are met")
    return 0


def _compile_ours() -> None:
    """Compiles our modules as pip does when it installs: pip compiled torchrun's, but this tree is not installed."""
    for folder in (ROOT / "supervisor", ROOT / "worker_client", ROOT / "proto", subjects.WORKLOADS):
        compileall.compile_dir(folder, quiet=1)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=[], help="measure these alone")
    parser.add_argument("--subjects", nargs="+", default=[], help="measure these alone: torchrun, reference, holdfast")
    parser.add_argument("--quick", action="store_true", help="few and short runs: does everything work?")
    parser.add_argument("--runs", type=int, help="runs of each subject in each row")
    parser.add_argument("--keep", action="store_true", help="join the report in docs/: other rows stay as they are")
    parser.add_argument("--out", type=Path, help="folder for the report (docs; build/benchmarks for a partial run)")
    parser.add_argument(
        "--python-reference",
        default=os.environ.get("PYTHON_REFERENCE", ""),
        help="the Python for the reference product (PYTHON_REFERENCE; default: this one)",
    )
    return parser


def _subjects(python_reference: str, wanted: list[str], conditions: Conditions) -> list[Subject]:
    """Returns all subjects; `conditions` gets the reason for each that can't be measured here."""
    launcher = Path("ft_launcher")
    if not wanted or Family.REFERENCE in wanted:
        try:
            python = python_reference or getattr(sys, "_base_executable", sys.executable)
            installed = reference_product.install(ROOT / ".venv-reference", python, say)
            launcher = installed.launcher
            conditions.versions["reference (nvidia-resiliency-ext)"] = _with_its(installed.versions)
        except reference_product.InstallError as error:
            say(f"the reference product is left out: {error}")
            conditions.absent |= {subject.key: str(error) for subject in subjects.reference(launcher)}
    everyone = [*subjects.torchrun(), *subjects.reference(launcher), *subjects.holdfast()]
    for subject in everyone:
        if wanted and subject.family not in wanted:
            conditions.absent[subject.key] = "left out by --subjects"
    for subject in everyone:
        if subject.key not in conditions.absent and (why := _cannot_start(subject)):
            say(f"{subject.label} is left out: {why}")
            conditions.absent[subject.key] = why
    return everyone


def _with_its(versions: dict[str, str]) -> str:
    others = " and ".join(f"{name} {version}" for name, version in versions.items() if name != "itself")
    return f"{versions['itself']} with {others}"


def _cannot_start(subject: Subject) -> str:
    """Returns why, or "". Warms the file cache too, so that no subject pays for being first."""
    try:
        done = subprocess.run(
            [str(subject.program), "--help"], check=False, capture_output=True, text=True, timeout=120
        )
    except OSError as error:
        return f"cannot start it: {error.strerror}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"cannot start it: {lines[-1] if lines else f'exit code {done.returncode}'}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
