"""Rows: how soon is a wrapped function called again on two nodes, after an exception and after the loss of a node?"""

from __future__ import annotations

import os
import signal

from tests.benchmarks.bench import START_LIMIT_S, Bench, Measured, seconds
from tests.benchmarks.launch import RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import Subject
from tests.benchmarks.wrapped_job import await_first_world, await_world, end_well, fail, iteration_of, last_ns
from tests.benchmarks.wrapped_job import wrapped_run as wrapped
from tests.cluster import lab

WORLD_SIZE = 4
FOLLOWER = 3  # a rank on the node that does not lead


def measure_two_nodes(bench: Bench) -> list[Row]:
    exception = Row(
        "inprocess_two_nodes_exception",
        Group.SPEED,
        "in-process on two nodes, exception on 1 of 4 ranks, defaults: from the exception → the function is entered "
        "again on all",
        Unit.SECONDS,
        Target(at_most=0.03),
        notes=["The nodes are network namespaces of this machine, so the network itself costs nothing."],
    )
    lost = Row(
        "inprocess_two_nodes_lost",
        Group.SPEED,
        "the same; one of the nodes loses its power → entered again on the other, beyond the time to notice",
        Unit.SECONDS,
        Target(at_most=0.1),
        notes=["The reference has no answer to the loss of a node: its survivors hang."],
    )
    rows = [exception, lost]
    if why := lab.missing():
        exception.notes.append(f"Not measured: a node of its own {why}.")
        return rows
    faults = {"reference": int(bench.length(3, 2)), "holdfast": int(bench.length(10, 2))}

    def fail_often(subject: Subject) -> Measured:
        took_s: list[float] = []
        with wrapped(subject, "exception", world_size=WORLD_SIZE, nodes=2) as run:
            world = await_first_world(run)
            for _ in range(faults[subject.key]):
                fault = fail(run, world, FOLLOWER)
                world = await_world(run, WORLD_SIZE, from_iteration=iteration_of(world[0]) + 1)
                took_s.append(seconds(fault.at_ns, last_ns(world)))
            end_well(run, world)
        return {exception.key: took_s}

    bench.fill([exception], {"reference": bench.runs(2, 1), "holdfast": bench.runs(4, 1)}, fail_often)
    bench.fill([lost], {"holdfast": bench.runs(5, 1)}, _lose)
    return rows


def _lose(subject: Subject) -> Measured:
    with wrapped(subject, "exception", world_size=WORLD_SIZE, nodes=2) as run:
        await_first_world(run)
        os.kill(run.pid, signal.SIGUSR2)
        power = run.await_events("power_lost", 1, limit_s=START_LIMIT_S)[0]
        survivors = await_world(run, WORLD_SIZE // 2, from_iteration=1)
        end_well(run, survivors)
        told = [each for each in run.told_by_supervisor() if each.kind == "node_lost" and each.at_ns > power.at_ns]
        if not told:
            raise RunFailedError(f"{subject.label}: nobody noticed the lost node\n{run.output_tail()}")
        return {"inprocess_two_nodes_lost": [seconds(told[0].at_ns, last_ns(survivors))]}
