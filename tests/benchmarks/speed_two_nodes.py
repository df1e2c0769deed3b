"""Rows: two nodes, each with two ranks that use torch: a rank is killed; a node is lost and a spare replaces it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, seconds, settle
from tests.benchmarks.launch import Event, Run, RunFailedError, say
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import TUNED_C10D, Family, JobOptions, Subject
from tests.cluster import lab

PLUGGED = "torchrun_plugin"
FOLLOWER = {"BENCH_FAULT_RANK": "3"}  # on the node that does not lead, so that the fault has to travel
SPARE_LOADS_S = 3.0  # from the first part of torch to the last, and some idle time


def measure_two_nodes(bench: Bench) -> list[Row]:
    kill = Row(
        "two_nodes_kill",
        Group.SPEED,
        "two nodes, 2 ranks each with torch: a rank kills itself → the new workers' gloo barrier",
        Unit.SECONDS,
        Target(at_most=0.15, share_of={"torchrun_tuned": 1 / 20, "reference": 1 / 20}),
        notes=[
            "The nodes are network namespaces of this machine, so the network itself costs nothing. Where the first "
            "new cycle fails too, its successors count: the time ends when all ranks are back."
        ],
    )
    recovered = Row(
        "two_nodes_recovered",
        Group.SPEED,
        "the same: jobs that end well after it",
        Unit.RECOVERED,
        Target(at_least=1.0),
        notes=[
            "The script asks no launcher how often it was restarted: each of torchrun's agents counts for itself. A "
            f"job that is not back within {RECOVERY_LIMIT_S:g} s counts as lost."
        ],
    )
    in_all = Row(
        "two_nodes_lost_in_all",
        Group.SPEED,
        "two nodes and a spare: a whole node loses its power → barrier with the spare",
        Unit.SECONDS,
        Target(at_most=5.3),
        notes=[f"torchrun tuned: its agents show themselves each second ({TUNED_C10D}) and not every 5 s."],
    )
    lost = Row("two_nodes_lost", Group.SPEED, "the same, beyond the time to notice", Unit.SECONDS, Target(at_most=0.3))
    noticed = Row(
        "two_nodes_noticed",
        Group.SPEED,
        "the same: power lost → the node is given up",
        Unit.SECONDS,
        Target(at_most=5.0),
        Statistic.WORST,
    )
    rows = [kill, recovered, in_all, lost, noticed]
    if why := lab.missing():
        kill.notes.append(f"Not measured: a node of its own {why}.")
        return rows

    def once(subject: Subject) -> Mapping[str, float]:
        with Run(subject, "restart_torch", JobOptions(nodes=2), variables=FOLLOWER) as run:
            try:
                return {kill.key: restart_s(run, ready="barrier", recovered="barrier"), recovered.key: 1.0}
            except RunFailedError as error:
                say(f"    lost: {error}")
                kill.add(subject.key, None)
                return {recovered.key: 0.0}

    peers = {**bench.counts(3, only=("torchrun", "reference")), **bench.counts(6, only=("torchrun_tuned", PLUGGED))}
    bench.fill([kill, recovered], {**peers, "holdfast": bench.runs(12)}, once)
    counts = {**bench.counts(2, 1, only=("torchrun_tuned", PLUGGED)), "holdfast": bench.runs(5)}
    bench.fill([in_all, lost, noticed], counts, _lose)
    return rows


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
        back_ns = max(event.at_ns for event in back)
        if code := run.await_exit(limit_s=EXIT_LIMIT_S):
            raise RunFailedError(f"{subject.label}: exit code {code} after the loss\n{run.output_tail()}")
        in_all = {"two_nodes_lost_in_all": seconds(power.at_ns, back_ns)}
        if subject.family is not Family.HOLDFAST:  # no other subject says when it has noticed
            return in_all
        noticed_ns = _noticed_ns(run, power)
        found = {"two_nodes_lost": seconds(noticed_ns, back_ns), "two_nodes_noticed": seconds(power.at_ns, noticed_ns)}
        return {**in_all, **found}


def _noticed_ns(run: Run, power: Event) -> int:
    """Returns when the leader decided to go on without the node, by its own record."""
    told = [each for each in run.told_by_supervisor() if each.kind == "restart_decided" and each.at_ns > power.at_ns]
    if not told:
        raise RunFailedError(f"{run.subject.label}: nobody decided anything about the lost node\n{run.output_tail()}")
    return told[0].at_ns
