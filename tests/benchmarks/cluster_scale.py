"""Rows: what do thousands of nodes cost their leader, and how soon do they all know of a fault, and run again?

All nodes are simulated in one process on this machine, each with the client of a supervisor; the leader is another one.
So both share the machine's cores, and the seconds hold the work of all nodes, which in a cluster is done at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.bench import Bench, Measured
from tests.benchmarks.launch import RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import WORKLOADS, Subject
from tests.edges.peers.certificates import make_authority, make_node

RENDEZVOUS_S = {64: 0.03, 256: 0.08, 1024: 0.25}  # at most
MANY, MANY_QUICK = 10_240, 512
BY_RELAYS, BY_RELAYS_QUICK = 2_560, 512  # one process sends and passes on all heartbeats, each over TLS twice
FAN_OUT, FAN_OUT_QUICK = 128, 32
START_OF_MANY_S = 240.0  # of all nodes of a row, on a busy machine
TOLD_S = {1024: 0.1, MANY: 0.5}


def measure_nodes(bench: Bench) -> list[Row]:
    return [*_rendezvous(bench), *_many(bench), *_by_relays(bench)]


def _rendezvous(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for nodes, limit_s in RENDEZVOUS_S.items():
        row = Row(
            f"nodes_rendezvous_{nodes}",
            Group.SPEED,
            f"{nodes:,} nodes: a rank's failure on one to the next cycle on all (their workers take no time)",
            Unit.SECONDS,
            Target(at_most=limit_s),
        )
        found = [row]
        if nodes in TOLD_S:
            found.append(_told(nodes))

        def once(_: Subject, nodes: int = nodes) -> Measured:
            faults = bench.runs(20, 5)
            measured = _run(nodes, faults, 0.0)
            return {f"nodes_rendezvous_{nodes}": measured["rendezvous_s"], f"nodes_told_{nodes}": measured["told_s"]}

        bench.fill(found, bench.counts(1, 1, only=("holdfast",)), once)
        rows += found
    return rows


def _told(nodes: int) -> Row:
    title = f"{nodes:,} nodes: a rank's failure on one until all others are told"
    return Row(f"nodes_told_{nodes}", Group.SPEED, title, Unit.SECONDS, Target(at_most=TOLD_S[nodes]))


def _many(bench: Bench) -> list[Row]:
    nodes = int(bench.length(MANY, MANY_QUICK))
    told = _told(MANY)
    warm = Row(
        f"nodes_warm_{MANY}", Group.SPEED, f"{MANY:,} nodes: a rank's failure on one to the next cycle on all",
        Unit.SECONDS, Target(at_most=2.0),
    )  # fmt: skip
    cold = Row(
        f"nodes_cold_tls_{MANY}", Group.SPEED, f"{MANY:,} nodes: all connect with TLS, to the first cycle on all",
        Unit.SECONDS, Target(at_most=15.0),
    )  # fmt: skip
    cpu = Row(
        f"nodes_cpu_{MANY}", Group.COST, f"the leader of {MANY:,} nodes, while nothing fails: CPU", Unit.CORES,
        Target(at_most=0.15),
    )  # fmt: skip
    memory = Row(
        f"nodes_memory_{MANY}", Group.COST, f"the leader of {MANY:,} nodes: memory (PSS)", Unit.MIB,
        Target(at_most=150.0),
    )  # fmt: skip
    rows = [told, warm, cold, cpu, memory]
    if nodes != MANY:
        warm.notes.append(f"a quick run: with {nodes} nodes")

    def once(_: Subject) -> Measured:
        plain = _run(nodes, bench.runs(5, 2), bench.length(30.0, 5.0))
        with tempfile.TemporaryDirectory() as folder:
            make_authority(Path(folder))
            make_node(Path(folder))
            secured = _run(nodes, 0, 0.0, folder)
        return {
            told.key: plain["told_s"],
            warm.key: plain["rendezvous_s"],
            cold.key: secured["cold_s"],
            cpu.key: plain["idle_cores"],
            memory.key: plain["memory_mib"],
        }

    bench.fill(rows, bench.counts(1, 1, only=("holdfast",)), once)
    return rows


def _by_relays(bench: Bench) -> list[Row]:
    """What is left for the leader; here, the relays' own work is done by the process of all nodes."""
    nodes, fan_out = int(bench.length(BY_RELAYS, BY_RELAYS_QUICK)), int(bench.length(FAN_OUT, FAN_OUT_QUICK))
    title = f"the leader of {BY_RELAYS:,} nodes, most of them by relays"
    cpu = Row(
        f"nodes_cpu_relays_{BY_RELAYS}", Group.COST, f"{title}, while nothing fails: CPU", Unit.CORES,
        Target(at_most=0.02),
    )  # fmt: skip
    cold = Row(
        f"nodes_cold_relays_{BY_RELAYS}", Group.COST, f"{title}: its CPU until all run, with TLS", Unit.SECONDS,
        Target(at_most=4.0),
    )  # fmt: skip
    rows = [cpu, cold]
    cpu.notes.append(
        "The target is for 10,240 nodes; one process can't play so many that also pass on each other's words."
    )
    if nodes != BY_RELAYS:
        cpu.notes.append(f"a quick run: with {nodes} nodes")

    def idle(_: Subject) -> Measured:
        return {cpu.key: _run(nodes, 0, bench.length(30.0, 5.0), "", fan_out)["idle_cores"]}

    def start(_: Subject) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            make_authority(Path(folder))
            make_node(Path(folder))
            return {cold.key: _run(nodes, 0, 0.0, folder, fan_out)["cold_cpu_s"]}

    for row, once in ((cpu, idle), (cold, start)):
        bench.fill([row], bench.counts(1, 1, only=("holdfast",)), once)
    return rows


def _run(
    nodes: int, faults: int, idle_s: float, certificates: str = "", fan_out: int = 0
) -> dict[str, Sequence[float]]:
    """What the workload has measured."""
    script = WORKLOADS / "cluster_nodes.py"
    command = [sys.executable, str(script), str(nodes), str(faults), str(idle_s), certificates, str(fan_out)]
    limit_s = START_OF_MANY_S + idle_s + 10 * faults
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"{nodes} nodes: no result after {error.timeout:g} s") from error
    if done.returncode:
        raise RunFailedError(f"{nodes} nodes: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
