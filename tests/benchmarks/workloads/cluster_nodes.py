"""Plays many nodes of one job, and prints what they see of their leader as one line of JSON.

Arguments: nodes, faults, seconds of idling, folder of certificates, nodes that connect to the leader and not to a relay
(0: all). The nodes answer the coordinator's orders at once: the figures measure the leader and the stream. They also
include what playing the nodes costs (lean_nodes.py).
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.workloads.cluster_leader import JOB, rules, tls_of
from tests.benchmarks.workloads.lean_nodes import Player

LIMIT_S = 200.0
SETTLE_S = 0.5


class Costs:
    """CPU of the leader and of the nodes in each phase."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.found: dict[str, list[float]] = {}

    @contextmanager
    def counted(self, what: str) -> Generator[None]:
        leader_s, own_s = cpu_s(self._leader), time.process_time()
        yield
        self.found.setdefault(f"{what}_cpu_s", []).append(cpu_s(self._leader) - leader_s)
        self.found.setdefault(f"{what}_nodes_cpu_s", []).append(time.process_time() - own_s)


def main(count: int, faults: int, idle_s: float, certificates: str, fan_out: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    script = Path(__file__).with_name("cluster_leader.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(port), str(count), certificates, fan_out],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("SHOW") else subprocess.DEVNULL,
    ) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        costs = Costs(leader.pid)
        found = costs.found
        found["empty_mib"] = [memory_mib(leader.pid)]
        tls = tls_of(certificates)
        player = Player(count, port, tls, job_id=JOB, rules=rules(count))
        from_s = time.monotonic()
        with costs.counted("cold"):
            player.start(LIMIT_S)
        found["cold_s"] = [player.started_s - from_s]
        for _ in range(faults):
            player.idle(SETTLE_S)
            with costs.counted("fault"):
                told_s, started_s = player.fault(LIMIT_S)
            found.setdefault("told_s", []).append(told_s)
            found.setdefault("rendezvous_s", []).append(started_s)
        player.idle(2)
        with costs.counted("idle"):
            player.idle(idle_s)
        found["idle_cores"] = [cpu / idle_s for cpu in found["idle_cpu_s"]] if idle_s else []
        found["memory_mib"] = [memory_mib(leader.pid)]
        leader.kill()
    print(json.dumps(found), flush=True)


def cpu_s(pid: int) -> float:
    """Returns the CPU time of all threads as exactly as the scheduler accounts for it."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5])
