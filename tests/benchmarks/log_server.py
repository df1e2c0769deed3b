"""Rows: the log server of a job on many nodes (--ft-enable-log-server): its pace, its cost, and what its deaths lose.

One process plays all nodes (workloads/log_crowd.py); it shares this machine's cores with one leaf and the root.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.benchmarks.bench import Bench, Measured
from tests.benchmarks.launch import RunFailedError
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import WORKLOADS, Subject
from tests.programs.log_service.crowd import LINE_BYTES

NODES, NODES_QUICK = 1536, 64
LINES = 600  # of each node
KILLS, KILLS_QUICK = 6, 2
MEMORY_MIB = 400
LIMIT_S = 300.0
MIB = 1024 * 1024


def measure_log_server(bench: Bench) -> list[Row]:
    nodes, kills = int(bench.length(NODES, NODES_QUICK)), int(bench.length(KILLS, KILLS_QUICK))
    pace = Row(
        "log_server_lines", Group.SPEED,
        f"log server: {NODES:,} nodes send {LINES} lines of {LINE_BYTES} bytes each to one leaf, as fast as it can",
        Unit.LINES_PER_S,
        notes=["All of them, leaf and root share this machine. The time ends once the last line is in the file."],
    )  # fmt: skip
    cpu = Row("log_server_cpu", Group.COST, "the same: CPU of the leaf for each GB", Unit.SECONDS)
    root_cpu = Row("log_server_root_cpu", Group.COST, "the same: CPU of the root for each GB", Unit.SECONDS)
    idle = Row("log_server_idle", Group.COST, "the same, before the first line: private memory of the leaf", Unit.MIB)
    memory = Row(
        "log_server_memory", Group.COST, "the same: private memory of the leaf, at most", Unit.MIB,
        Target(at_most=MEMORY_MIB), Statistic.WORST,
    )  # fmt: skip
    wrong = Row(
        "log_server_killed", Group.ENDURANCE,
        f"log server: leaf or root of {NODES:,} nodes is killed {KILLS} times: lines that are lost or doubled",
        Unit.LINES, Target(at_most=0), Statistic.WORST,
    )  # fmt: skip
    if nodes != NODES:
        pace.notes.append(f"a quick run: with {nodes} nodes")

    def send(_: Subject) -> Measured:
        found = _run(nodes, 0)
        gb = nodes * LINES * LINE_BYTES / 1e9
        return {
            pace.key: nodes * LINES / float(found["took_s"]),
            cpu.key: float(found["leaf_cpu_s"]) / gb,
            root_cpu.key: float(found["root_cpu_s"]) / gb,
            idle.key: float(found["idle_bytes"]) / MIB,
            memory.key: float(found["most_bytes"]) / MIB,
        }

    def kill(_: Subject) -> Measured:
        found = _run(nodes, kills)
        most_mib = float(found["most_bytes"]) / MIB
        wrong.notes.append(
            f"{nodes * LINES:,} lines, {found['deaths']} deaths; the leaf had at most {most_mib:.0f} MiB of its own."
        )
        return {wrong.key: float(found["wrong_lines"])}

    bench.fill([pace, cpu, root_cpu, idle, memory], bench.counts(3, 1, only=("holdfast",)), send)
    bench.fill([wrong], bench.counts(1, 1, only=("holdfast",)), kill)
    return [pace, cpu, root_cpu, idle, memory, wrong]


def _run(nodes: int, kills: int) -> dict[str, float | str]:
    """Runs the workload; returns what it measured."""
    command = [sys.executable, str(WORKLOADS / "log_crowd.py"), str(nodes), str(LINES), str(kills)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"{nodes} nodes: no result after {error.timeout:g} s") from error
    if done.returncode:
        raise RunFailedError(f"{nodes} nodes: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["fault"] and not kills:
        raise RunFailedError(f"{nodes} nodes: {found['fault']}")
    return found
