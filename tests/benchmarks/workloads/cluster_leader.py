"""The leader of one job, as a supervisor has it (peers, engine, coordinator), without workers of its own.

Arguments: port, --rdzv-conf-like file of the token, folder of certificates or "". Ends with its standard input.
"""

from __future__ import annotations

import random
import resource
import sys

import anyio
from anyio import to_thread

from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.node import messages as node_messages
from supervisor.edges.machine.clock import Clock
from supervisor.edges.peers import cluster_peers
from supervisor.edges.peers.cluster_link import PeerAddress
from supervisor.edges.peers.cluster_peers import Meeting
from supervisor.engine.loop import Engine
from supervisor.ports import Peers

JOB = "scale"
TOKEN = b"the token of a job that is measured"


class Performer:
    """See engine.loop.Performer: orders leave through the peers, all else is of no interest."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        return ()

    def send(self, job_id: str, action: cluster_messages.Send) -> None:
        self._peers.send(action.node, job_id, action.order)

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None:
        print(f"{action.event.kind}: {action.event.reason}", file=sys.stderr, flush=True)

    def leads(self, job_id: str) -> bool:
        return True

    def settled(self) -> None:
        return


async def main(port: int) -> None:
    engine = Engine(clock=Clock(), node_name="leader", jitter=random.random)
    meeting = Meeting(JOB, "leader", PeerAddress("127.0.0.1", port), TOKEN, 60.0)
    async with cluster_peers.open_peers(meeting, engine.post) as peers, anyio.create_task_group() as tasks:
        engine.attach(Performer(peers))
        await tasks.start(engine.run)
        print("listening", flush=True)
        await to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(main, int(sys.argv[1]), backend_options={"use_uvloop": True})
