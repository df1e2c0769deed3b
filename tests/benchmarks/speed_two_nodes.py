"""Rows: two nodes, two ranks each with torch: a rank is killed; a whole node is lost and a spare takes its place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds, settle
from tests.benchmarks.launch import Event, Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import JobOptions, Subject
from tests.cluster import lab

FOLLOWER = {"BENCH_FAULT_RANK": "3"}  # on the node that does not lead: the fault travels
SPARE_LOADS_S = 3.0  # from the first part of torch to the last, and some rest


def measure_two_nodes(bench: Bench) -> list[Row]:
    kill = Row(
        "two_nodes_kill",
        Group.SPEED,
        "two nodes, 2 ranks each with torch: a rank kills itself → the new workers' gloo barrier",
        Unit.SECONDS,
        Target(at_most=0.15, share_of={"torchrun_tuned": 1 / 20, "reference": 1 / 20}),
        notes=["The nodes are network namespaces of this machine, so the network itself costs nothing."],
    )
    lost = Row(
        "two_nodes_lost",
        Group.SPEED,
        "two nodes and a spare: a whole node loses its power → barrier with the spare, beyond the time to notice",
        Unit.SECONDS,
        Target(at_most=0.3),
    )
    noticed = Row(
        "two_nodes_noticed",
        Group.SPEED,
        "the same: power lost → the node is given up",
        Unit.SECONDS,
        Target(at_most=5.0),
        Statistic.WORST,
    )
    rows = [kill, lost, noticed]
    if why := lab.missing():
        kill.notes.append(f"Not measured: a node of its own {why}.")
        return rows
    counts = bench.counts(3, only=("torchrun_tuned", "reference"))
    bench.fill([kill], {**counts, "holdfast": bench.runs(9)}, _kill)
    bench.fill([lost, noticed], bench.counts(5, only=("holdfast",)), _lose)
    return rows


def _kill(subject: Subject) -> Mapping[str, float]:
    with Run(subject, "restart_torch", JobOptions(nodes=2), variables=FOLLOWER) as run:
        return {"two_nodes_kill": restart_s(run, ready="barrier", recovered="barrier")}


def _lose(subject: Subject) -> Mapping[str, float]:
    with Run(subject, "restart_torch", JobOptions(nodes=2, spares=1)) as run:
        run.await_events("barrier", run.options.world_size, cycle=0, limit_s=START_LIMIT_S)
        os.kill(run.pid, signal.SIGUSR1)
        run.await_events("spare_ready", 1, limit_s=START_LIMIT_S)
        time.sleep(SPARE_LOADS_S)
        settle()
        os.kill(run.pid, signal.SIGUSR2)
        power = run.await_events("power_lost", 1, limit_s=START_LIMIT_S)[0]
        back = run.await_recovery("barrier", limit_s=RECOVERY_LIMIT_S)
        if code := run.await_exit(limit_s=EXIT_LIMIT_S):
            raise RunFailedError(f"{subject.label}: exit code {code} after the loss\n{run.output_tail()}")
        noticed_ns = _noticed_ns(run, power)
        return {
            "two_nodes_lost": seconds(noticed_ns, max(event.at_ns for event in back)),
            "two_nodes_noticed": seconds(power.at_ns, noticed_ns),
        }


def _noticed_ns(run: Run, power: Event) -> int:
    """When the leader decided to go on without the node, as it has told."""
    told = [each for each in run.told_by_supervisor() if each.kind == "restart_decided" and each.at_ns > power.at_ns]
    if not told:
        raise RunFailedError(f"{run.subject.label}: nobody decided anything about the lost node\n{run.output_tail()}")
    return told[0].at_ns
