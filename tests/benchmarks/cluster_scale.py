"""Rows: what do thousands of nodes cost their leader, and how soon do they all know of a fault, and run again?

One lean process on this machine (workloads/lean_nodes.py) plays all nodes; the leader is another process. Both thus
share the machine's cores: the seconds include the work of all nodes, which a cluster does in parallel; the notes say
how much CPU each of the two took.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.config.rendezvous_settings import RELAYED_FAN_OUT
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_tls import Pipe, TlsFiles
from tests.benchmarks.bench import Bench, Measured
from tests.benchmarks.launch import RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.subjects import WORKLOADS, Subject
from tests.edges.peers.certificates import make_authority, make_node

RENDEZVOUS_S = {64: 0.03, 256: 0.08, 1024: 0.25}  # at most
MANY, MANY_QUICK = 10_240, 512
FAN_OUT, FAN_OUT_QUICK = RELAYED_FAN_OUT, 32  # the default of so large a job
HANDSHAKES = 300  # measured alone
START_OF_MANY_S = 240.0  # of all nodes of a row, on a busy machine
TOLD_S = {1024: 0.1, MANY: 0.5}


def measure_rendezvous(bench: Bench) -> list[Row]:
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

        def once(_: Subject, nodes: int = nodes, row: Row = row) -> Measured:
            measured = _run(nodes, bench.runs(20, 5), 0.0)
            row.notes.append(_costs(measured, "fault", "a fault"))
            return {f"nodes_rendezvous_{nodes}": measured["rendezvous_s"], f"nodes_told_{nodes}": measured["told_s"]}

        bench.fill(found, bench.counts(1, 1, only=("holdfast",)), once)
        rows += found
    return rows


def _told(nodes: int) -> Row:
    title = f"{nodes:,} nodes: a rank's failure on one until all others are told"
    return Row(f"nodes_told_{nodes}", Group.SPEED, title, Unit.SECONDS, Target(at_most=TOLD_S[nodes]))


def measure_many(bench: Bench) -> list[Row]:
    """Measures nodes that are all connected to the leader itself."""
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
    if nodes != MANY:
        warm.notes.append(f"a quick run: with {nodes} nodes")

    def play(_: Subject) -> Measured:
        plain = _run(nodes, bench.runs(5, 2), bench.length(30.0, 5.0))
        warm.notes.append(_costs(plain, "fault", "a fault"))
        cpu.notes.append(_costs(plain, "idle", "all of that time"))
        return {
            told.key: plain["told_s"],
            warm.key: plain["rendezvous_s"],
            cpu.key: plain["idle_cores"],
            memory.key: plain["memory_mib"],
        }

    def start(_: Subject) -> Measured:
        secured = _run_secured(nodes)
        cold.notes.append(_costs(secured, "cold", "the start"))
        leads_s, follows_s = secured["handshake_s"]
        both_s = nodes * (leads_s + follows_s) / 2
        cold.notes.append(
            f"OpenSSL alone, without connections: {leads_s * 1e3:.2g} ms of CPU on the leader's side of a handshake, "
            f"{follows_s * 1e3:.2g} ms on the node's: {both_s:.3g} s for all on two cores."
        )
        return {cold.key: secured["cold_s"]}

    counts = bench.counts(1, 1, only=("holdfast",))
    bench.fill([warm, told, cpu, memory], counts, play)
    bench.fill([cold], counts, start)
    return [told, warm, cold, cpu, memory]


def measure_by_relays(bench: Bench) -> list[Row]:
    """Measures the leader's part; messages between relays and their nodes cost it nothing and are left out."""
    nodes, fan_out = int(bench.length(MANY, MANY_QUICK)), int(bench.length(FAN_OUT, FAN_OUT_QUICK))
    title = f"{MANY:,} nodes, {FAN_OUT} at the leader (fan_out={FAN_OUT}) and the others by relays"
    cpu = Row(
        f"nodes_cpu_relays_{MANY}", Group.COST, f"the leader of {title}, while nothing fails: CPU", Unit.CORES,
        Target(at_most=0.02),
    )  # fmt: skip
    cold = Row(
        f"nodes_cold_relays_{MANY}", Group.SPEED, f"{title}: all connect with TLS, to the first cycle on all",
        Unit.SECONDS, Target(at_most=4.0),
    )  # fmt: skip
    warm = Row(
        f"nodes_warm_relays_{MANY}", Group.SPEED, f"{title}: a rank's failure on one to the next cycle on all",
        Unit.SECONDS,
    )  # fmt: skip
    if nodes != MANY:
        cpu.notes.append(f"a quick run: with {nodes} nodes, {fan_out} at the leader")

    def play(_: Subject) -> Measured:
        plain = _run(nodes, bench.runs(5, 2), bench.length(30.0, 5.0), "", fan_out)
        warm.notes.append(_costs(plain, "fault", "a fault"))
        return {warm.key: plain["rendezvous_s"], cpu.key: plain["idle_cores"]}

    def start(_: Subject) -> Measured:
        secured = _run_secured(nodes, fan_out)
        cold.notes.append(_costs(secured, "cold", "the start"))
        return {cold.key: secured["cold_s"]}

    counts = bench.counts(1, 1, only=("holdfast",))
    bench.fill([warm, cpu], counts, play)
    bench.fill([cold], counts, start)
    return [warm, cold, cpu]


def _costs(measured: Mapping[str, Sequence[float]], what: str, over: str) -> str:
    """Returns the costs of both processes, which share the machine's cores."""
    leader_s, nodes_s = (statistics.median(measured[key]) for key in (f"{what}_cpu_s", f"{what}_nodes_cpu_s"))
    return f"CPU in {over}: the leader {leader_s:.3g} s, the process that plays all nodes {nodes_s:.3g} s."


def _run_secured(nodes: int, fan_out: int = 0) -> dict[str, Sequence[float]]:
    with tempfile.TemporaryDirectory() as folder:
        make_authority(Path(folder))
        alone = {"handshake_s": _handshake_s(make_node(Path(folder)))}
        return _run(nodes, 0, 0.0, folder, fan_out) | alone


def _handshake_s(files: TlsFiles) -> tuple[float, float]:
    """Returns the CPU time of a handshake on the leader's side and on the node's, without anything else."""
    tls = cluster_tls.load(files)
    spent_s = [0.0, 0.0]
    for _ in range(HANDSHAKES):
        sides = Pipe(tls, leads=True), Pipe(tls, leads=False)
        sealed = b""
        for step in range(4):  # the node begins and ends
            side = (step + 1) % 2
            from_s = time.process_time()
            sides[side].read(sealed)
            sealed = sides[side].outgoing()
            spent_s[side] += time.process_time() - from_s
    return spent_s[0] / HANDSHAKES, spent_s[1] / HANDSHAKES


def _run(
    nodes: int, faults: int, idle_s: float, certificates: str = "", fan_out: int = 0
) -> dict[str, Sequence[float]]:
    """Runs the workload; returns what it measured."""
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
