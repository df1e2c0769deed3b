"""One rank falls silent while 71 others flood: real server and engine still give its verdict in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from holdfast_wire.framing import encode
from holdfast_wire.v1 import worker_pb2

from supervisor.config.job_spec import JobSpec
from supervisor.core.announcements import Announcement
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.facts import HangLimits, JobEvent, JobRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import node_messages
from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import Engine
from supervisor.engine.engine_state import EngineState
from tests.edges.workers.worker_side import JOB_ID, TOKEN, WorkerSide, hello, until

RANKS = 72
FRAMES_EACH = 10_000
LIMIT_S = 1.5
BOUND_S = 0.25  # 1.9 ms at p99 on a quiet machine without a flood

# Argument: the socket. Stdin: one line with each rank's hello, then the burst. Sends as fast as it is read.
SCRIPT = """
import select, socket, sys
path, frames = sys.argv[1], int(sys.argv[2])
*hellos, burst = [bytes.fromhex(line) for line in sys.stdin]
waiting = {}
for hello in hellos:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    peer.sendall(hello)
    peer.recv(65536)
    peer.setblocking(False)
    waiting[peer] = len(burst) * frames
chunk = burst * 500
print("ready", flush=True)
while waiting:
    for peer in select.select([], list(waiting), [])[1]:
        left = waiting[peer]
        start = -left % len(burst)
        sent = peer.send(memoryview(chunk)[start:start + min(left, len(chunk) - start)])
        waiting[peer] = left - sent
        if not waiting[peer]:
            del waiting[peer]
print("done", flush=True)
sys.stdin.read()
"""


class Joined:
    """Performs the engine's actions in the real server; spawner and coordinator obey at once."""

    def __init__(self, inbox: EngineInbox, server: WorkerServer) -> None:
        self.inbox = inbox
        self.server = server
        self.hangs: list[tuple[float, JobEvent]] = []
        self.words = 0

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        match action:
            case node_messages.StartSpawner(job_id, number):
                return (node_messages.SpawnerReady(job_id, number),)
            case node_messages.PrepareStore(job_id, cycle):
                return (node_messages.StoreReady(job_id, cycle, "127.0.0.1", 29500),)
            case node_messages.SpawnWorkers(job_id, assignment):
                return tuple(
                    node_messages.WorkerSpawned(job_id, assignment.cycle, each, 100 + each) for each in range(RANKS)
                )
            case node_messages.ReadProgress(job_id, cycle, local_rank):
                progress = self.server.read_progress(job_id, cycle, local_rank)
                return () if progress is None else (node_messages.ProgressRead(job_id, cycle, local_rank, progress),)
            case node_messages.TellCoordinator(job_id, report):
                self.inbox.post(cluster.Reported(job_id, report))
            case node_messages.Publish(event=event) if event.kind == "hang_detected":
                self.hangs.append((time.monotonic(), event))
            case _:
                pass
        return ()

    def send(self, job_id: str, action: cluster.Send) -> None:
        self.inbox.post(node_messages.Ordered(job_id, action.order))

    def publish(self, job_id: str, action: cluster.Publish) -> None:
        pass

    def record(self, job_id: str, ledger: Ledger) -> None:
        pass

    def announce(self, job_id: str, announcement: Announcement) -> None:
        pass

    def show(self, job_id: str, *, restarts_used: int, iteration: int) -> None:
        pass

    def leads(self, job_id: str) -> bool:
        return True

    def name_in(self, job_id: str) -> str:
        return "n0"

    def settled(self) -> None:
        pass


def lines() -> bytes:
    """Returns the flooding process's input: a message that goes to the engine each time, and its ranks' hellos."""
    burst = worker_pb2.WorkerFrame(faults_reported=worker_pb2.FaultsReported(call=1, iteration=2))
    frames = [hello(each) for each in range(1, RANKS)] + [burst]
    return b"".join(encode(each.SerializeToString(), frame_bytes_max=1024).hex().encode() + b"\n" for each in frames)


@pytest.mark.alone
async def test_a_silent_rank_is_found_in_time_while_all_others_burst(tmp_path: Path) -> None:
    path = tmp_path / "sock" / "worker" / "worker.sock"
    limits = HangLimits(heartbeat_s=LIMIT_S)
    inbox = EngineInbox()
    server = WorkerServer(socket_path=path, events=inbox, clock=Clock(), on_sections=lambda _: None)
    joined = Joined(inbox, server)
    engine = Engine(clock=Clock(), inbox=inbox, engine_state=EngineState("n0"), performer=joined, jitter=lambda: 0.5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        await tasks.start(engine.run)
        spec = JobSpec(job_id=JOB_ID, command=("train.py",), local_world_size=RANKS)
        server.open_cycle(JOB_ID, 0, token=TOKEN, spec=spec, limits=limits, first_rank=0, is_fenced=False)
        inbox.post(node_messages.JobSubmitted(JobRules(JOB_ID, RANKS, hang_limits=limits)))
        flood = subprocess.Popen(  # noqa: ASYNC220 a test's
            [sys.executable, "-c", SCRIPT, str(path), str(FRAMES_EACH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert flood.stdin is not None
        assert flood.stdout is not None
        for each in range(RANKS):
            server.expect(JOB_ID, 0, each, flood.pid if each else os.getpid())
        silent = WorkerSide(path)
        output = flood.stdout
        try:
            await silent.join(0, can_share_page=False)
            flood.stdin.write(lines())
            flood.stdin.close()
            await anyio.wait_readable(output)
            os.set_blocking(output.fileno(), False)
            progress = worker_pb2.Progress(initialised_age_ns=10**6, heartbeat_age_ns=0, heartbeats=1)
            beat_at_s = time.monotonic()
            await silent.send(worker_pb2.WorkerFrame(progress=progress))
            await until(lambda: joined.hangs, at_most_s=8.0)
            found_at_s, event = joined.hangs[0]
            late_s = found_at_s - beat_at_s - LIMIT_S
            told = os.read(output.fileno(), 100)
            print(f"{late_s * 1e3:.1f} ms late")
            assert told == b"ready\n", "the burst is still under way"
            assert event.rank == 0
            assert -0.01 <= late_s < BOUND_S
        finally:
            flood.kill()
            flood.wait()
            output.close()
            silent.close()
            tasks.cancel_scope.cancel()
