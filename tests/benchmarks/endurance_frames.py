"""Rows: how does malformed input at the workers' socket affect the other ranks and the supervisor?"""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks import processes
from tests.benchmarks.bench import START_LIMIT_S, Bench, seconds
from tests.benchmarks.cost import MIB, beside_workers
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.speed_detection import hang
from tests.benchmarks.subjects import Family, JobOptions, Subject

HEARTBEAT_TIMEOUT_S = 2.0
INPUTS = 1_000_000
LIMIT_S = 240.0
PEER_INPUTS = 2_000
PEER_LIMIT_S = 10.0


def measure_frames(bench: Bench) -> list[Row]:
    taken = Row(
        "frames",
        Group.ENDURANCE,
        "malformed inputs from rank 3 at the workers' socket, while ranks 0 to 2 are watched",
        Unit.INPUTS,
        Target(at_least=INPUTS),
        notes=[
            "Oversized, empty, cut-off and random frames, bursts behind a valid hello, 64 connections that never end a "
            f"frame. A run passes if no rank is restarted meanwhile (heartbeat timeout {HEARTBEAT_TIMEOUT_S:g} s), "
            "rank 3 is served afterwards, and a rank that then falls silent is killed.",
            f"The reference is given {PEER_INPUTS:,} inputs and {PEER_LIMIT_S:g} s; torchrun has no such socket.",
        ],
    )
    served = Row("frames_served", Group.ENDURANCE, "after them: rank 3 connects and is served", Unit.SECONDS)
    overshoot = Row(
        "frames_hang", Group.ENDURANCE, "after them: a silent rank is dead, beyond the timeout", Unit.SECONDS,
        Target(at_most=0.15, never_below=0.0),
    )  # fmt: skip
    growth = Row("frames_growth", Group.ENDURANCE, "memory (PSS) that they added beside the workers", Unit.MIB)

    def once(subject: Subject) -> Mapping[str, float]:
        ours = subject.family is Family.HOLDFAST
        inputs = int(bench.length(INPUTS, 20_000)) if ours else PEER_INPUTS
        limit_s = LIMIT_S if ours else PEER_LIMIT_S
        options = JobOptions(heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S, arguments=(str(inputs), str(limit_s)))
        with Run(subject, "attacked", options) as run:
            started = run.await_events("first_line", 4, cycle=0, limit_s=START_LIMIT_S)
            run.await_events("ready", 3, cycle=0, limit_s=START_LIMIT_S)
            before_bytes = sum(map(processes.pss_bytes, beside_workers(run, started)))
            attack = run.await_events("attacked", 1, limit_s=limit_s + START_LIMIT_S)[0]
            if any(event.cycle for event in run.events):
                raise RunFailedError(f"{subject.label}: ranks were restarted meanwhile\n{run.output_tail()}")
            after_bytes = sum(map(processes.pss_bytes, beside_workers(run, started)))
            last, died_ns = hang(run)
            told = attack.fields
            taken.notes.append(
                f"{subject.label}: {int(told['inputs']) / float(told['took_s']):,.0f} inputs/s, slowest answer "
                f"{float(told['slowest_answer_s']):.3f} s, {told['unanswered']} connections never closed."
            )
            return {
                taken.key: int(told["inputs"]),
                served.key: float(told["served_after_s"]),
                overshoot.key: seconds(last.at_ns, died_ns) - HEARTBEAT_TIMEOUT_S,
                growth.key: max(0, after_bytes - before_bytes) / MIB,
            }

    bench.fill([taken, served, overshoot, growth], dict.fromkeys(("reference", "holdfast"), 1), once)
    return [taken, served, overshoot, growth]
