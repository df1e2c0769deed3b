"""Runs the training of train_lm.py under Holdfast while ranks are killed, hang and hold the GIL; reports what happened.

Exits with 0 only if every fault struck, the job continued from its checkpoint each time with the same loss, and
succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor.core.event_weights import Weight, weight
from supervisor.core.terminal_sentences import addition

HERE = Path(__file__).parent
JOB_ID = "demo"
RANKS = 4
STEPS = 200
STEPS_MIN = 60  # with fewer, a fault would come before the first checkpoint
FAULTS_AT = {"kill": 45, "hang": 95, "hold-gil": 145}  # step of STEPS
SAME_LOSS = 0.05  # for the same step, bytes and checkpoint; gloo may add in a different order
BARS = "▁▂▃▄▅▆▇█"
CHART_COLUMNS = 40
UNKNOWN_WIDTH = 120  # columns, where nobody says how wide the terminal is
WHY_COLUMN = 31  # of the timeline, after time, mark and kind

WHAT = {
    "kill": "rank 1 was killed (SIGKILL)",
    "hang": "rank 2 hung (an endless wait)",
    "hold_gil": "rank 3 held the GIL (a C call that never returned)",
}
SHORT = {"kill": "rank 1 was killed", "hang": "rank 2 hung", "hold_gil": "rank 3 held the GIL"}


@dataclass(frozen=True)
class Fault:
    what: str
    rank: int
    step: int
    at: float


@dataclass(frozen=True)
class Point:
    """One finished training step."""

    step: int
    loss: float
    at: float
    resumed: bool


@dataclass(frozen=True)
class Recovery:
    fault: Fault
    noticed_s: float
    stopped_s: float
    started_s: float
    training_s: float
    resumed_at: Point
    before: Point


class DemoError(Exception):
    """Something did not go as the demo promises."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of the training, {STEPS_MIN} at least")
    arguments = parser.parse_args()
    output: Path = arguments.output.absolute()
    steps: int = arguments.steps
    if steps < STEPS_MIN:
        parser.error(
            f"cannot train for {steps} steps: no checkpoint precedes the first fault; use at least {STEPS_MIN}"
        )
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    os.environ["HOLDFAST_STATE_DIR"] = str(output / "state")
    started_at = time.time()
    exit_code = run_job(output, steps)
    try:
        events = read_events(output)
        show_timeline(events, read_faults(output), started_at)
        if exit_code:
            raise DemoError(f"the job ended with exit code {exit_code}")
        points = read_curve(output)
        recoveries = [recovery(fault, events, points) for fault in read_faults(output)]
        show_recoveries(recoveries)
        show_curve(points)
        write_report(output)
        if len(recoveries) != len(FAULTS_AT):
            raise DemoError(f"{len(recoveries)} of {len(FAULTS_AT)} faults struck")
        if points[-1].step != steps - 1:
            raise DemoError(f"the last step was {points[-1].step}, not {steps - 1}")
    except DemoError as error:
        print(f"\nthe demo failed: {error}; see {output}", file=sys.stderr)
        return 1
    took_s = time.time() - started_at
    print(f"\nSuccess after {took_s:.0f} s, {len(recoveries)} faults survived. Everything is in {output}")
    return 0


def run_job(output: Path, steps: int) -> int:
    faults_at = {what: at * steps // STEPS for what, at in FAULTS_AT.items()}
    flags = ["--job-id", JOB_ID, "--nproc-per-node", str(RANKS), "--max-restarts", "5"]
    # DDP imports torch._dynamo, 800 modules, on first use. Loaded ahead, they delay no restart.
    flags += ["--preload", "torch,torch._dynamo"]
    flags += ["--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "30"]
    # Each rank reads its batch by itself, so a tight limit there blames the right one; in a step, all wait for all.
    flags += ["--ft-rank-section-timeouts", "batch:2,step:20"]
    script = [str(HERE / "train_lm.py"), "--steps", str(steps), "--output", str(output)]
    for what, step in faults_at.items():
        script += [f"--{what}-at", str(step)]
    print(
        wrapped(
            f"{RANKS} ranks train a small model; this takes about a minute. Rank 1 is killed at step "
            f"{faults_at['kill']}, rank 2 hangs at step {faults_at['hang']}, rank 3 holds the GIL at step "
            f"{faults_at['hold-gil']}. Each time, Holdfast restarts the ranks, which go on from the last checkpoint. "
            "A rank that has lost another one may print a traceback of torch (gloo) before it is stopped: it is no "
            "further fault."
        )
    )
    show_command([*flags, os.path.relpath(script[0]), *script[1:]])
    return subprocess.run([holdfast(), "run", *flags, *script], check=False).returncode


def show_command(arguments: Sequence[str]) -> None:
    """Shows what is run, one flag with its value on a line where they do not fit into one."""
    text = shlex.join(["holdfast", "run", *arguments])
    if len(text) + 2 > columns():
        text = re.sub(r" (?=--)", " \\\\\n    ", text)
    print(f"\n$ {text}\n", flush=True)


def holdfast() -> str:
    """Returns the program beside this interpreter, which need not be on the PATH."""
    return str(Path(sys.executable).with_name("holdfast"))


def write_report(output: Path, job_id: str = JOB_ID, environment: dict[str, str] | None = None) -> None:
    """Writes the job's life on one page, as `holdfast report` does for every job."""
    path = output / "report.html"
    command = [holdfast(), "report", job_id, "-o", str(path)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if told.returncode:
        raise DemoError(f"holdfast report: {told.stderr.strip()}")
    print(f"\nThe job's life on one page: {path}")


# --- what was recorded ---------------------------------------------------------------------------------------------


def read_events(output: Path) -> list[dict[str, Any]]:
    told = subprocess.run([holdfast(), "events", JOB_ID, "-o", "jsonl"], capture_output=True, text=True, check=False)
    if told.returncode:
        raise DemoError(f"holdfast events: {told.stderr.strip()}")
    (output / "events.jsonl").write_text(told.stdout)
    events = [json.loads(line) for line in told.stdout.splitlines()]
    return [{**event, "at": datetime.fromisoformat(event["at"]).timestamp()} for event in events]


def read_faults(output: Path) -> list[Fault]:
    marks = [json.loads(path.read_text()) for path in output.glob("struck-*")]
    return sorted((Fault(**mark) for mark in marks), key=lambda fault: fault.at)


def read_curve(output: Path) -> list[Point]:
    path = output / "curve.jsonl"
    if not path.exists():
        raise DemoError("not one training step was made")
    return [Point(**json.loads(line)) for line in path.read_text().splitlines()]


def recovery(fault: Fault, events: list[dict[str, Any]], points: list[Point]) -> Recovery:
    """Returns how long each part took. Raises DemoError if the training is not where it was."""

    def after(*kinds: str) -> float:
        times = [event["at"] for event in events if event["kind"] in kinds and event["at"] >= fault.at]
        if not times:
            raise DemoError(f"no {' or '.join(kinds)} after {WHAT[fault.what]}")
        return times[0]

    resumed = next((point for point in points if point.resumed and point.at > fault.at), None)
    if resumed is None:
        raise DemoError(f"no training after {WHAT[fault.what]}")
    before = [point for point in points if point.step == resumed.step and point.at < fault.at]
    if not before:
        raise DemoError(f"the job went on at step {resumed.step}, which it had not reached before")
    if abs(before[-1].loss - resumed.loss) > SAME_LOSS:
        raise DemoError(f"at step {resumed.step} the loss was {before[-1].loss:.3f} and is {resumed.loss:.3f}")
    noticed = after("workers_stopping", "hang_detected")
    stopped = after("workers_stopped")
    started = after("workers_started")
    return Recovery(
        fault,
        noticed_s=noticed - fault.at,
        stopped_s=stopped - noticed,
        started_s=started - stopped,
        training_s=resumed.at - started,
        resumed_at=resumed,
        before=before[-1],
    )


# --- what is printed -----------------------------------------------------------------------------------------------


def show_timeline(events: list[dict[str, Any]], faults: list[Fault], started_at: float) -> None:
    told = [event for event in events if event["kind"] != "worker_started"]  # workers_started covers all
    lines = [(event["at"], " ", event["kind"], event["reason"]) for event in told]
    lines += [(fault.at, "*", "fault", f"{WHAT[fault.what]} at step {fault.step}") for fault in faults]
    print("\nWhat happened, and why (* is what the demo did)\n")
    cause = ""
    for at, mark, kind, reason in sorted(lines):
        added = addition(reason, cause)
        print(wrapped(added, f"{at - started_at:7.2f} s {mark} {kind:18} ", WHY_COLUMN))
        cause = reason if weight(kind) is Weight.FAULT else cause


def show_recoveries(recoveries: list[Recovery]) -> None:
    print("\nFrom each fault to training again\n")
    print(f"{'':32} noticed  stopped  restarted  training")
    for one in recoveries:
        print(
            f"{SHORT[one.fault.what]:32} {one.noticed_s:5.2f} s  {one.stopped_s:5.2f} s    {one.started_s:5.2f} s   "
            f"{one.training_s:5.2f} s"
        )
    print("\nThe loss before each fault, and after it, at the same step\n")
    for one in recoveries:
        print(
            f"{SHORT[one.fault.what]:32} step {one.resumed_at.step}: {one.before.loss:.3f}, {one.resumed_at.loss:.3f}"
        )


def show_curve(points: list[Point]) -> None:
    """Shows the loss over the steps, using the last run of each step."""
    losses = [loss for _, loss in sorted({point.step: point.loss for point in points}.items())]
    columns = min(CHART_COLUMNS, len(losses))
    means = [mean(losses[i * len(losses) // columns : (i + 1) * len(losses) // columns]) for i in range(columns)]
    low, high = min(means), max(means)
    bars = [BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in means]
    print(f"\nLoss over {len(losses)} steps: {losses[0]:.2f} {''.join(bars)} {losses[-1]:.2f}")


def wrapped(text: str, first: str = "", indent: int = 0) -> str:
    """Returns the text, with `first` before it, in lines as wide as the terminal."""
    return textwrap.fill(
        text, columns(), initial_indent=first, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def columns() -> int:
    return shutil.get_terminal_size((UNKNOWN_WIDTH, 24)).columns


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
