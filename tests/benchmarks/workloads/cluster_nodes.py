"""Many nodes of one job in one process, and what they see of their leader: prints one line of JSON.

Arguments: nodes, faults, seconds of idling, folder of certificates, nodes that connect to the leader and not to a relay
(0: all). Each node has the client of a supervisor, and its coordinator's orders are answered at once: what is measured
is the leader, the stream, and this process, which does the work of all nodes, relays included.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio

from supervisor.core import orders
from supervisor.core.cluster.messages import JobOpened, NodeFailed, NodeJoined, Reported
from supervisor.core.node.messages import Ordered
from supervisor.edges.peers.cluster_client import ClusterClient
from supervisor.edges.peers.cluster_link import PeerAddress
from tests.benchmarks.workloads.cluster_leader import JOB, TOKEN, rules, tls_of

LIMIT_S = 120.0
SETTLE_S = 0.5
AT_ONCE = 64  # newcomers with relays: each takes two handshakes of this one process, which has all heartbeats to send
LOOK_S = 0.02


class Nodes:
    """All nodes, and when the last of them was told something."""

    def __init__(self, count: int, port: int, certificates: str) -> None:
        self.count = count
        self.port = port
        self.clients: list[ClusterClient] = []
        self.under_way: list[ClusterClient] = []
        self.cycle = -1
        self.told = 0  # nodes that know of the fault
        self.started = 0  # nodes that have the cycle
        self.changed = anyio.Event()
        self.told_s = 0.0
        self.started_s = 0.0
        self.rules = rules(count)
        self.tls = tls_of(certificates)

    def add(self) -> ClusterClient:
        name = f"node-{len(self.clients):05}"
        cycle = -1

        def take(ordered: Ordered) -> None:
            nonlocal cycle
            match ordered.order:
                case orders.StartCycle(assignment):
                    cycle = self.cycle = assignment.cycle
                    self.started += 1
                    if self.started == self.count:
                        self.started_s = time.monotonic()
                        self.changed.set()
                case orders.JoinAgain():
                    self.told += 1
                    if self.told == self.count:
                        self.told_s = time.monotonic()
                    client.report(Reported(JOB, NodeJoined(name, cycle)))
                case other:
                    fail(f"{name} was told {other}")

        client = ClusterClient(
            PeerAddress("127.0.0.1", self.port),
            job_id=JOB,
            token=TOKEN,
            own_name=name,
            on_order=take,
            on_lost=fail,
            tls=self.tls.follows if self.tls is not None else None,
            relay_tls=self.tls.leads if self.tls is not None else None,
        )
        client.report(Reported(JOB, JobOpened(name, self.rules)))
        client.report(Reported(JOB, NodeJoined(name, -1)))
        self.clients.append(client)
        self.under_way.append(client)
        return client

    async def room(self) -> None:
        """Returns once fewer than AT_ONCE are on their way to a leader."""
        with anyio.fail_after(LIMIT_S):
            while len(self.under_way) >= AT_ONCE:
                await anyio.sleep(LOOK_S)
                self.under_way = [each for each in self.under_way if not each.was_welcomed]

    async def all_started(self) -> None:
        with anyio.fail_after(LIMIT_S):
            while self.started < self.count:
                self.changed = anyio.Event()
                await self.changed.wait()

    async def fault(self) -> tuple[float, float]:
        """A rank of one node has ended; seconds until all nodes know, and until all have the next cycle."""
        self.told = self.started = 0
        at_s = time.monotonic()
        self.clients[0].report(Reported(JOB, NodeFailed("node-00000", self.cycle, "rank 0 was killed by signal 9")))
        await self.all_started()
        return self.told_s - at_s, self.started_s - at_s


def fail(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


async def run(client: ClusterClient) -> None:
    await client.run(join_timeout_s=LIMIT_S)


async def main(count: int, faults: int, idle_s: float, certificates: str, fan_out: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    here = Path(__file__)
    found: dict[str, list[float]] = {}
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
        [sys.executable, str(here.with_name("cluster_leader.py")), str(port), str(count), certificates, fan_out],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("SHOW") else subprocess.DEVNULL,
    ) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        empty_mib = memory_mib(leader.pid)
        nodes = Nodes(count, port, certificates)
        async with anyio.create_task_group() as tasks:
            from_s = time.monotonic()
            from_cpu_s = cpu_s(leader.pid)
            for _ in range(count):
                tasks.start_soon(run, nodes.add())
                if fan_out != "0":
                    await nodes.room()
            await nodes.all_started()
            found["cold_s"] = [nodes.started_s - from_s]
            found["cold_cpu_s"] = [cpu_s(leader.pid) - from_cpu_s]
            samples: list[tuple[float, float]] = []
            from_cpu_s = cpu_s(leader.pid)
            for _ in range(faults):
                await anyio.sleep(SETTLE_S)
                samples.append(await nodes.fault())
            found["told_s"] = [told for told, _ in samples]
            found["rendezvous_s"] = [started for _, started in samples]
            found["fault_cpu_s"] = [(cpu_s(leader.pid) - from_cpu_s) / max(1, faults)]
            await anyio.sleep(2)
            from_cpu_s = cpu_s(leader.pid)
            await anyio.sleep(idle_s)
            found["idle_cores"] = [(cpu_s(leader.pid) - from_cpu_s) / idle_s] if idle_s else []
            found["memory_mib"] = [memory_mib(leader.pid)]
            found["empty_mib"] = [empty_mib]
            tasks.cancel_scope.cancel()
        leader.kill()
    print(json.dumps(found), flush=True)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(
        main, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5],
        backend_options={"use_uvloop": True},
    )  # fmt: skip
