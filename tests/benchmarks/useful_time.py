"""Rows: what share of the time goes into steps that count, while ranks keep failing?

A step counts once, in its last execution. Lost are steps repeated after a checkpoint, steps that were unfinished when a
rank failed, every start and every wait.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.bench import Bench, seconds
from tests.benchmarks.launch import Event, Run, RunFailedError, say
from tests.benchmarks.pictures import Lane, lanes_picture
from tests.benchmarks.rows import OURS, Group, Row, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject

LENGTH_S = 300.0
FAULT_EVERY_S = 20.0
FAULT_JITTER_S = 4.0
SILENCE_LIMIT_S = 2.0
GLOO_TIMEOUT_S = 10.0  # of wrapped ranks: only it ends the reference's wait for a failed rank
WORLD_SIZE = 4
PLENTY = 1000  # restarts
SEED = 20
GONE_S = 0.2  # a longer pause between two steps is drawn

KILL, SILENCE, EXCEPTION = signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one rank at a given time, the same for each subject."""

    at_s: float  # from the launch
    rank: int
    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class Steps:
    """Steps as rank 0 reported them: those that count, and those that a return to a checkpoint undid."""

    counted: list[Step] = field(default_factory=list[Step])
    lost: list[Step] = field(default_factory=list[Step])

    def add(self, step: Step) -> None:
        while self.counted and self.counted[-1].number >= step.number:
            self.lost.append(self.counted.pop())
        self.counted.append(step)


@dataclass(frozen=True, slots=True)
class Split:
    """Where the time of one run went; the parts add up to its length."""

    counted_s: float
    start_s: float  # from the command to the first step
    returns: int
    return_s: float  # from the last step before each fault to the first one after it
    again_s: float  # in steps that a return to the checkpoint undid
    between_s: float  # between other steps, and after the last one

    def __str__(self) -> str:
        each_s = self.return_s / self.returns if self.returns else 0.0
        return (
            f"{self.counted_s:.1f} s in steps that count, {self.start_s:.2f} s until the first step, "
            f"{self.return_s:.2f} s in {self.returns} returns ({each_s:.3f} s each, with the step that the fault cut "
            f"off), {self.again_s:.2f} s in steps made again, {self.between_s:.2f} s between other steps"
        )


def measure_kills(bench: Bench) -> list[Row]:
    return [_row(bench, "kills", "a rank is killed every 20 s", (KILL,), at_least=0.975)]


def measure_hangs(bench: Bench) -> list[Row]:
    title = "a rank is killed or falls silent (limit 2 s) every 20 s"
    return [_row(bench, "hangs", title, (KILL, SILENCE), at_least=0.92)]


def measure_wrapped_kills(bench: Bench) -> list[Row]:
    return [_row(bench, "wrapped_kills", "in-process: a rank raises every 20 s", (EXCEPTION,), at_least=0.97)]


def measure_wrapped_hangs(bench: Bench) -> list[Row]:
    title = "in-process: a rank raises or falls silent (soft_timeout 2 s) every 20 s"
    return [_row(bench, "wrapped_hangs", title, (EXCEPTION, SILENCE), at_least=0.93)]


def _row(bench: Bench, key: str, title: str, kinds: Sequence[signal.Signals], *, at_least: float) -> Row:
    length_s = bench.length(LENGTH_S, 60.0)
    wrapped = EXCEPTION in kinds
    row = Row(
        f"useful_time_{key}",
        Group.SPEED,
        f"useful time: the demo's training on 4 ranks for {length_s:g} s, {title}: share in steps that count",
        Unit.SHARE,
        Target(at_least=at_least),
        notes=_notes(kinds),
    )
    faults = plan(length_s, kinds)
    lanes: list[Lane] = []
    splits: dict[str, list[Split]] = {}

    def once(subject: Subject) -> Mapping[str, float]:
        steps, launched_ns = _train(subject, faults, length_s, wrapped=wrapped)
        within = [step for step in steps.counted if seconds(launched_ns, step.ended_ns) <= length_s]
        split = split_up(steps, launched_ns, length_s)
        splits.setdefault(subject.label, []).append(split)
        share = split.counted_s / length_s
        if all(lane.label != subject.label for lane in lanes):
            lanes.append(Lane(
                f"{subject.label}: {share:.0%}",
                useful_s=list(_spans(within, launched_ns)),
                lost_s=list(_spans(sorted(steps.lost, key=lambda step: step.began_ns), launched_ns)),
            ))  # fmt: skip
        return {row.key: share}

    peers = ("reference",) if wrapped else ("torchrun_tuned", "reference")
    bench.fill([row], {**{key: bench.runs(1, 1) for key in peers}, OURS: bench.runs(3, 1)}, once)
    for label, runs in splits.items():
        middle_run = sorted(runs, key=lambda split: split.counted_s)[(len(runs) - 1) // 2]
        row.notes.append(f"{label}, where the time of the median run went: {middle_run}.")
    row.picture = lanes_picture(row.title, lanes, [fault.at_s for fault in faults], length_s)
    return row


def split_up(steps: Steps, launched_ns: int, length_s: float) -> Split:
    """Says where the time went from the launch on; what ended later is left out."""
    counted_s = again_s = return_s = between_s = 0.0
    returns, before = 0, Step(-1, launched_ns, launched_ns)
    start_s = length_s
    made = sorted(
        ((step, is_lost) for is_lost in (False, True) for step in (steps.counted, steps.lost)[is_lost]),
        key=lambda each: each[0].began_ns,
    )
    for step, is_lost in made:
        if seconds(launched_ns, step.ended_ns) > length_s:
            break
        took_s, pause_s = seconds(step.began_ns, step.ended_ns), seconds(before.ended_ns, step.began_ns)
        counted_s, again_s = (counted_s, again_s + took_s) if is_lost else (counted_s + took_s, again_s)
        if before.number < 0:
            start_s = pause_s
        elif step.number <= before.number or pause_s > GONE_S:
            returns, return_s = returns + 1, return_s + pause_s
        else:
            between_s += pause_s
        before = step
    if before.number >= 0:
        between_s += length_s - seconds(launched_ns, before.ended_ns)
    return Split(counted_s, start_s, returns, return_s, again_s, between_s)


def _notes(kinds: Sequence[signal.Signals]) -> list[str]:
    notes = ["A checkpoint is made every 10 steps. The time begins with the command, so it holds the cold start."]
    if EXCEPTION in kinds:
        return [
            *notes,
            f"The group's own timeout is {GLOO_TIMEOUT_S:g} s, which is all that ends the reference's wait.",
        ]
    if SILENCE in kinds:
        notes.append("torchrun watches no heartbeats: the ranks renew its countdown timer of 2 s instead.")
    return notes


def plan(length_s: float, kinds: Sequence[signal.Signals]) -> list[Fault]:
    """Returns the same faults for each subject and run: kinds in turn, random ranks, about every FAULT_EVERY_S."""
    dice = random.Random(SEED)
    count = int(length_s / FAULT_EVERY_S) - 1
    return [
        Fault(
            (number + 1) * FAULT_EVERY_S + dice.uniform(-FAULT_JITTER_S, FAULT_JITTER_S),
            dice.randrange(WORLD_SIZE),
            kinds[number % len(kinds)],
        )
        for number in range(count)
    ]


def _train(subject: Subject, faults: Sequence[Fault], length_s: float, *, wrapped: bool) -> tuple[Steps, int]:
    watched = any(fault.signal is SILENCE for fault in faults)
    arguments = ["--wrapped", "--gloo-timeout-s", f"{GLOO_TIMEOUT_S:g}"] if wrapped else []
    arguments += ["--silence-limit-s", f"{SILENCE_LIMIT_S:g}"] if watched else []
    options = JobOptions(
        world_size=WORLD_SIZE,
        max_restarts=PLENTY,
        heartbeat_timeout_s=SILENCE_LIMIT_S if watched and not wrapped else None,
        file_timers=watched and subject.family is Family.TORCHRUN,
        wrapped=wrapped,
        arguments=tuple(arguments),
    )
    with Run(subject, "useful_time", options) as run:
        launched_s = run.launched_ns / 1e9
        for fault in faults:
            if not run.take_until(launched_s + fault.at_s):
                break
            _befall(run, fault)
        if not run.take_until(launched_s + length_s):
            seen_s = time.monotonic() - launched_s
            say(f"    {subject.label}: the job ended after {seen_s:.0f} s\n{run.output_tail()}")
        steps = _steps(run.events)
        if not steps.counted:
            raise RunFailedError(f"{subject.label}: no step in {length_s:g} s\n{run.output_tail()}")
        return steps, run.launched_ns


def _befall(run: Run, fault: Fault) -> None:
    """Brings the fault to its rank; skips a rank that is absent at that moment."""
    pids = [event.pid for event in run.events if event.name == "ready" and event.rank == fault.rank]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[-1], fault.signal)


def _steps(events: Sequence[Event]) -> Steps:
    steps = Steps()
    for event in events:
        if event.name == "step":
            steps.add(Step(int(event.fields["step"]), int(event.fields["began_ns"]), event.at_ns))
    return steps


def _spans(steps: Sequence[Step], launched_ns: int) -> Iterator[tuple[float, float]]:
    """Returns the spans in which steps followed each other without a pause worth drawing."""
    began_ns = ended_ns = 0
    for step in steps:
        if not ended_ns or seconds(ended_ns, step.began_ns) > GONE_S:
            if ended_ns:
                yield seconds(launched_ns, began_ns), seconds(launched_ns, ended_ns)
            began_ns = step.began_ns
        ended_ns = step.ended_ns
    if ended_ns:
        yield seconds(launched_ns, began_ns), seconds(launched_ns, ended_ns)
