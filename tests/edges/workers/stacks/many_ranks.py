"""Many real ranks with the product's own client, forked from one warm interpreter as by the spawner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from supervisor.core.node import node_messages
from tests.edges.workers.worker_side import JOB_ID, TOKEN, Served, serve, until

# Forks the ranks, prints their pids, and ends them when its stdin ends.
SCRIPT = """
import os, signal, sys, time
from worker_client import RankMonitorClient
ranks, hung = int(sys.argv[1]), int(sys.argv[2])
def hold():
    sum(range(10**12))
def wait():
    while True:
        time.sleep(600)
def stand(rank):
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    hold() if rank == hung else wait()
pids = []
for rank in range(ranks):
    pid = os.fork()
    if not pid:
        stand(rank)
    pids.append(pid)
print(*pids, flush=True)
sys.stdin.read()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
"""


@asynccontextmanager
async def many_ranks(tmp_path: Path, *, ranks: int, hung: int) -> AsyncGenerator[tuple[Served, list[int]]]:
    """The hung rank holds the GIL. Yields once all are connected, with their pids by rank."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    async with serve(tmp_path, ranks=ranks, expect=False) as served:
        names = ("HOLDFAST_SOCKET", "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET")
        environment = os.environ | dict.fromkeys(names, str(served.path))
        environment |= {"HOLDFAST_JOB_ID": JOB_ID, "HOLDFAST_TOKEN_FILE": str(token), "HOLDFAST_CYCLE": "0"}
        command = (sys.executable, "-c", SCRIPT, str(ranks), str(hung))
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220 a test's
        assert process.stdout is not None
        try:
            pids = [int(word) for word in process.stdout.readline().split()]
            for rank, pid in enumerate(pids):
                served.server.expect(JOB_ID, 0, rank, pid)
            await until(lambda: len(served.of(node_messages.ClientJoined)) == ranks, at_most_s=120)
            yield served, pids
        finally:
            process.communicate()
