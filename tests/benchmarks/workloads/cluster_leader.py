"""Runs the leader of one job like a supervisor (peers, engine, coordinator), but without its own workers.

Arguments: port, nodes beside this one, folder of certificates ("": TLS by the token), nodes that connect to it and not
to a relay (0: all). It ends when its standard input does.
"""

from __future__ import annotations

import os
import random
import resource
import sys

import anyio
from anyio import to_thread

from supervisor.core import orders
from supervisor.core.announcements import Announcement
from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import JobRules, RendezvousRules, RestartRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import node_messages
from supervisor.edges.machine.clock import Clock
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import Engine
from supervisor.engine.engine_state import EngineState
from supervisor.ports.edges import Peers

JOB = "scale"
NAME = "leader"
TOKEN = b"the token of a job that is measured"


def rules(others: int) -> JobRules:
    nodes = others + 1
    restart = RestartRules(min_nodes=nodes, max_restarts=10**6, max_no_progress_cycles=0, backoff_base_s=0.0)
    return JobRules(JOB, 8, restart=restart, rendezvous=RendezvousRules(max_nodes=nodes))


def tls_of(folder: str) -> Tls:
    if not folder:
        return cluster_tls.from_token(TOKEN)
    files = TlsFiles(*(os.path.join(folder, name) for name in ("node.pem", "node.key", "ca.pem")))
    return cluster_tls.load(files)


class Performer:
    """See engine.engine_loop.Performer: orders leave through the peers; this node's own get their answer at once."""

    def __init__(self, peers: Peers, inbox: EngineInbox) -> None:
        self._peers = peers
        self._inbox = inbox
        self._cycle = -1

    def report(self, report: cluster_messages.Event) -> None:
        self._inbox.post(cluster_messages.Reported(JOB, report))

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        return ()

    def send(self, job_id: str, action: cluster_messages.Send) -> None:
        match action.order:
            case orders.StartCycle(assignment) if action.node == NAME:
                self._cycle = assignment.cycle
            case orders.JoinAgain() if action.node == NAME:
                self.report(cluster_messages.NodeJoined(NAME, self._cycle))
            case _:
                self._peers.send(action.node, job_id, action.order)

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None:
        print(f"{action.event.kind}: {action.event.reason}", file=sys.stderr, flush=True)

    def record(self, job_id: str, ledger: Ledger) -> None:
        return

    def announce(self, job_id: str, announcement: Announcement) -> None:
        return

    def show(self, job_id: str, *, restarts_used: int, iteration: int) -> None:
        return

    def leads(self, job_id: str) -> bool:
        return True

    def name_in(self, job_id: str) -> str:
        return NAME

    def settled(self) -> None:
        return


async def main(port: int, others: int, certificates: str, fan_out: int) -> None:
    inbox = EngineInbox()
    endpoint, tls = PeerAddress("127.0.0.1", port), tls_of(certificates)
    meeting = Meeting(JOB, NAME, endpoint, 60.0, tls=tls, fan_out=fan_out, nodes_max=others)
    async with cluster_peers.open_peers(meeting, inbox.post) as peers, anyio.create_task_group() as tasks:
        performer = Performer(peers, inbox)
        engine = Engine(
            clock=Clock(), inbox=inbox, engine_state=EngineState(NAME), performer=performer, jitter=random.random
        )
        performer.report(cluster_messages.JobOpened(NAME, rules(others)))
        performer.report(cluster_messages.NodeJoined(NAME, -1))
        await tasks.start(engine.run)
        print("listening", flush=True)
        await to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(
        main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), backend_options={"use_uvloop": True}
    )
