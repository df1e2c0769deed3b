"""How do orders and reports travel where the leader is elected, and what does a node do while there is none?

Each node watches who leads. While nobody does, it tries to. Losing backend or leader stops no training: a leader whose
time is up orders nothing until it has renewed its lead, and a node without a leader ends its workers only where another
node may take its place: it hears neither a leader nor that there is none, and the job has spares.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.core import orders
from supervisor.core.cluster.messages import (
    Event,
    LeadershipLost,
    LeadershipTaken,
    NodeCordoned,
    NodeExcluded,
    NodeStands,
    NodeStopped,
    Reported,
    RestartAsked,
    StopAsked,
)
from supervisor.core.facts import JobState, Verdict
from supervisor.core.ledger import Ledger
from supervisor.core.node.messages import FenceMoved, Ordered
from supervisor.edges.peers.cluster_client import FENCE_S, SPAWNER_LATER_S, ClusterClient
from supervisor.edges.peers.cluster_frames import Aside
from supervisor.edges.peers.cluster_link import PeerAddress
from supervisor.edges.peers.cluster_server import ClusterServer
from supervisor.edges.peers.cluster_tls import Tls
from supervisor.edges.peers.election.order_gate import OrderGate
from supervisor.edges.peers.listening import listen
from supervisor.edges.peers.switchboard import Switchboard
from supervisor.errors import NotNowError
from supervisor.pauses import pause
from supervisor.ports import Post
from supervisor.rendezvous_backend import (
    BackendRefusedError,
    BackendUnavailableError,
    Lead,
    Leader,
    LeadLostError,
    RendezvousBackend,
)

JITTER_S = 0.2  # before a node tries to lead: not all at once
AGAIN_S = 0.5
FENCE_MOVES = 4  # in the time of the fence
RENEWALS = 4  # in the time that a lead lasts without one
WISHES_KEPT_S = 10.0  # a person's wish is said again to a leader that comes so soon after it

_Standing = NodeExcluded | NodeCordoned  # wishes that hold under any leader
_Wish = StopAsked | RestartAsked | _Standing

_log = logging.getLogger("holdfast.cluster")


class Voter(msgspec.Struct, frozen=True):
    """As who a node takes part in the election."""

    job_id: str
    node: str
    host: str  # where the other nodes reach it
    token: bytes
    join_timeout_s: float
    min_nodes: int
    max_nodes: int
    tls: Tls | None = None
    fan_out: int = 0


class _Unknown:
    """Nothing was heard of the backend yet."""


class ElectedPeers:
    """See ports.Peers. `run` does everything."""

    def __init__(self, voter: Voter, backend: RendezvousBackend, post: Post, tasks: TaskGroup) -> None:
        self.colleagues = Switchboard(own_name=voter.node, leads=False, tasks=tasks, pass_on=self._pass_on)
        self._voter = voter
        self._backend = backend
        self._post = post
        self._seen: Leader | _Unknown | None = _Unknown()
        self._changed = anyio.Event()
        self._is_opened = anyio.Event()
        self._client: ClusterClient | None = None
        self._gate: OrderGate | None = None
        self._server: ClusterServer | None = None
        self._lead: Lead | None = None
        self._safe_until_s = anyio.current_time() + FENCE_S  # by then another node may have taken this one's place
        self._waits_since_s: float | None = anyio.current_time()  # for a leader, with nothing that runs
        self._wishes: list[tuple[float, _Wish]] = []
        self._over = ""

    # --- ports.Peers -----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._gate is not None

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        if self._gate is None:
            raise NotNowError(f"cannot give an order to node {node}: another node leads job {job_id}")
        self._gate.send(node, order)

    def record(self, job_id: str, ledger: Ledger) -> None:
        if self._gate is None:
            raise NotNowError(f"cannot record anything of job {job_id}: another node leads it")
        self._gate.record(ledger)

    def report(self, job_id: str, report: Event) -> None:
        """What a node reports while there is no leader, the next one learns from how the node stands then."""
        self._is_opened.set()
        now_s = anyio.current_time()
        if isinstance(report, _Wish):
            self._wishes.append((now_s, report))
        if self._over:
            if isinstance(report, NodeStopped):
                self._post(Ordered(job_id, orders.Conclude(Verdict(JobState.FAILED, 1, self._over))))
            return
        self._leave(report)
        if isinstance(report, NodeStands):
            for at_s, wish in self._wishes:
                if isinstance(wish, _Standing) or now_s - at_s < WISHES_KEPT_S:
                    self._leave(wish)

    def _pass_on(self, node: str, aside: Aside) -> bool:
        if self._server is not None:
            return self._server.say_aside(node, aside)
        return self._client is not None and self._client.say_aside(aside)

    def _leave(self, report: Event) -> None:
        if self._gate is not None:
            self._post(Reported(self._voter.job_id, report))
        elif self._client is not None:
            self._client.report(Reported(self._voter.job_id, report))
        elif self._waits_since_s is None and not isinstance(report, _Wish):
            self._waits_since_s = anyio.current_time()

    async def until_all_is_heard(self) -> None:
        if self._gate is not None and self._server is not None:
            await self._gate.until_empty()
            await self._server.until_all_is_heard()
            recorded = self._gate.last_recorded
            if self._lead is not None and recorded is not None and recorded.verdict is not None:
                await self._lead.resign(forget=True)
        elif self._client is not None:
            await self._client.until_all_is_heard()

    # --- who leads -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or no leader was found in time."""
        await self._is_opened.wait()  # Before, the engine has no job that could be led.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            tasks.start_soon(self._keep_fence)
            while not self._over:
                seen = self._seen
                if isinstance(seen, Leader) and seen.node != self._voter.node:
                    await self._unless_changed(seen, lambda seen=seen: self._follow(seen))
                else:
                    await self._try_to_lead()
                self._end_in_time()
            tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(self._backend.leaders()) as leaders:
                    async for leader in leaders:
                        self._see(leader)
            except BackendUnavailableError as error:
                _log.warning("cannot watch who leads job %s: %s; training goes on", self._voter.job_id, error)
            except BackendRefusedError as error:
                self._refuse(str(error))
            await pause(AGAIN_S, why="nothing tells when the backend works again")

    async def _keep_fence(self) -> None:
        """If this supervisor stands still, the spawner ends the workers: another node may have their place by then."""
        while True:
            self._post(FenceMoved(self._voter.job_id, anyio.current_time() + FENCE_S + SPAWNER_LATER_S))
            await pause(FENCE_S / FENCE_MOVES, why="the spawner hears in time that this loop turns")

    def _see(self, leader: Leader | None) -> None:
        if leader is None:
            self._be_safe()
        if leader != self._seen:
            self._seen = leader
            self._changed.set()

    def _refuse(self, why: str) -> None:
        """A mistake of the configuration ends a job that has not begun; later, it is only told."""
        if isinstance(self._seen, _Unknown):
            self._give_up(f"cannot elect a leader of job {self._voter.job_id}: {why}; check --rdzv-conf")
        else:
            _log.warning("cannot ask who leads job %s: %s", self._voter.job_id, why)

    async def _unless_changed(
        self, seen: Leader | _Unknown | None, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Runs it, until another leader is seen."""
        async with anyio.create_task_group() as tasks:

            async def do() -> None:
                await work()
                tasks.cancel_scope.cancel()

            tasks.start_soon(do)
            while self._seen == seen:
                self._changed = anyio.Event()
                await self._changed.wait()
            tasks.cancel_scope.cancel()

    # --- as a follower ---------------------------------------------------------------------------------------------

    async def _follow(self, leader: Leader) -> None:
        """Until it is not heard any more."""
        lost: list[str] = []
        voter = self._voter
        client = ClusterClient(
            _address(leader.address),
            job_id=voter.job_id,
            token=voter.token,
            own_name=voter.node,
            on_order=self._post,
            on_lost=lost.append,
            on_aside=self.colleagues.take,
            tls=voter.tls.follows if voter.tls is not None else None,
            relay_tls=voter.tls.leads if voter.tls is not None else None,
        )
        patience_s = max(0.5, min(self._safe_until_s - anyio.current_time(), FENCE_S))
        self._client = client
        try:
            self._post(Ordered(voter.job_id, orders.Introduce()))
            await client.run(join_timeout_s=patience_s)
        finally:
            if client.known_at_s is not None:
                self._waits_since_s = None
                self._safe_until_s = max(self._safe_until_s, client.known_at_s + FENCE_S)
            self._client = None
        why = lost[0] if lost else "its connection ended"
        if client.known_at_s is None and client.is_refused:
            self._give_up(why)
            return
        _log.warning("the leader of job %s is not heard any more: %s", voter.job_id, why)
        await self._stand_back_unless_free(leader)
        await pause(AGAIN_S, why="nothing tells when it can be reached again")

    async def _stand_back_unless_free(self, leader: Leader | None) -> None:
        """The leader that is not heard may give this node up by now, unless there is none any more."""
        try:
            with anyio.fail_after(AGAIN_S):
                current = await self._backend.leader()
        except (BackendUnavailableError, BackendRefusedError, TimeoutError):
            if self._voter.max_nodes > self._voter.min_nodes and anyio.current_time() >= self._safe_until_s:
                self._stand_back("neither the leader nor the backend of the rendezvous was heard in time")
            return
        if current is not None and current == leader:
            self._stand_back(f"node {current.node} leads, and was not heard in time")
        elif current is None:
            self._be_safe()
        self._see(current)

    def _be_safe(self) -> None:
        """Nobody leads at this moment. One who does from now on gives all nodes the time to be heard."""
        self._safe_until_s = anyio.current_time() + FENCE_S

    def _stand_back(self, why: str) -> None:
        text = f"node {self._voter.node} ends its workers, since another may take its place: {why}"
        self._post(Ordered(self._voter.job_id, orders.StandBack(text)))

    # --- as a leader -----------------------------------------------------------------------------------------------

    async def _try_to_lead(self) -> None:
        await pause(random.uniform(0, JITTER_S), why="all nodes see at once that nobody leads")
        voter = self._voter
        listeners = await listen(PeerAddress(voter.host, 0))
        if listeners is None:
            self._give_up(f"cannot listen at {voter.host}: it is no address of this node; check --local-addr")
            return
        asked_at_s = anyio.current_time()
        lead: Lead | None = None
        try:
            address = PeerAddress(voter.host, int(listeners[0].getsockname()[1]))
            lead = await self._backend.try_to_lead(voter.node, str(address))
        except BackendUnavailableError as error:
            _log.warning("cannot elect a leader of job %s: %s; training goes on", voter.job_id, error)
            await self._stand_back_unless_free(None)
        except BackendRefusedError as error:
            self._refuse(str(error))
        if lead is None:
            for each in listeners:
                each.close()
            with anyio.move_on_after(AGAIN_S):
                await self._unless_changed(self._seen, anyio.Event().wait)
            return
        why = await self._reign(lead, listeners, asked_at_s)
        _log.warning("this node leads job %s no more: %s", voter.job_id, why)

    async def _reign(self, lead: Lead, listeners: list[socket.socket], asked_at_s: float) -> str:
        """Returns why it has ended."""
        voter = self._voter
        server = ClusterServer(
            job_id=voter.job_id,
            token=voter.token,
            own_name=voter.node,
            on_report=self._post,
            on_aside=self.colleagues.take,
            tls=voter.tls.leads if voter.tls is not None else None,
            term=lead.term,
            fan_out=voter.fan_out,
            nodes_max=voter.max_nodes - 1,
        )

        def deliver(node: str, order: orders.Order) -> None:
            if node == voter.node:
                self._post(Ordered(voter.job_id, order))
            else:
                server.send(node, order)

        gate = OrderGate(deliver, valid_until_s=asked_at_s + lead.ttl_s)
        ended: list[str] = []
        try:
            async with anyio.create_task_group() as tasks:

                async def until_lost(work: Callable[[], Coroutine[None, None, None]]) -> None:
                    try:
                        await work()
                    except LeadLostError as error:
                        ended.append(str(error))
                        tasks.cancel_scope.cancel()

                await tasks.start(server.run, listeners)
                self._gate, self._server, self._lead, self._waits_since_s = gate, server, lead, None
                self.colleagues.leads = True
                self._post(Reported(voter.job_id, LeadershipTaken(lead.term, _read_ledger(lead.state))))
                self._post(Ordered(voter.job_id, orders.Introduce()))
                _log.info("this node leads job %s (term %d)", voter.job_id, lead.term)
                tasks.start_soon(until_lost, lambda: gate.run(lambda ledger: _write(lead, ledger)))
                tasks.start_soon(until_lost, lambda: self._keep(lead, gate, server, asked_at_s))
        finally:
            self._gate = self._server = self._lead = None
            self.colleagues.leads = False
            self._safe_until_s = max(self._safe_until_s, gate.valid_until_s + FENCE_S)
            why = ended[0] if ended else "it ends"
            self._post(Reported(voter.job_id, LeadershipLost(why)))
            if not ended:
                with anyio.CancelScope(shield=True):
                    await lead.resign(forget=False)
        return why

    async def _keep(self, lead: Lead, gate: OrderGate, server: ClusterServer, renewed_at_s: float) -> None:
        """Renews the lead. Raises LeadLostError once another node may lead that could replace those which follow."""
        while True:
            await pause(lead.ttl_s / RENEWALS, why="a lead is renewed in time")
            asked_at_s = anyio.current_time()
            with suppress(BackendUnavailableError, BackendRefusedError, TimeoutError):
                with anyio.fail_after(lead.ttl_s / 2):
                    await lead.renew()
                renewed_at_s = asked_at_s
                gate.extend(renewed_at_s + lead.ttl_s)
            elsewhere = self._voter.max_nodes - 1 - server.connected
            if anyio.current_time() >= renewed_at_s + lead.ttl_s and elsewhere >= self._voter.min_nodes:
                raise LeadLostError(f"it could not renew its lead for {lead.ttl_s:g} s")

    # --- the end ---------------------------------------------------------------------------------------------------

    def _end_in_time(self) -> None:
        if self._waits_since_s is None or self._over:
            return
        if anyio.current_time() - self._waits_since_s > self._voter.join_timeout_s:
            self._give_up(f"no leader of job {self._voter.job_id} was found for {self._voter.join_timeout_s:g} s")

    def _give_up(self, why: str) -> None:
        self._over = why
        self._changed.set()
        self._post(Ordered(self._voter.job_id, orders.WindDown(why, at_once=True)))


def _address(text: str) -> PeerAddress:
    host, _, port = text.rpartition(":")
    return PeerAddress(host.strip("[]"), int(port) if port.isdecimal() else 0)


async def _write(lead: Lead, ledger: Ledger) -> None:
    await lead.write(msgspec.json.encode(ledger), is_last=ledger.verdict is not None)


def _read_ledger(state: bytes) -> Ledger:
    """What can't be read says nothing: the nodes still know the cycle that they run, and the budget as of then."""
    try:
        return msgspec.json.decode(state, type=Ledger) if state else Ledger()
    except msgspec.MsgspecError as error:
        _log.warning("what the last leader has left can't be read: %s", error)
        return Ledger()
