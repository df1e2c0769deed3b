"""What does a node do while it leads a job: which nodes does it serve, what may it order, and when does it answer?

The machines in core/election decide when it renews its lead, orders and answers.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskStatus

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeLost, Reported
from supervisor.core.election import lead_renewal, leader_heartbeats
from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.core.leader_ledger import Ledger, after_all_know
from supervisor.core.node.node_messages import Ordered
from supervisor.edges.peers.codec.cluster_frames import Aside
from supervisor.edges.peers.election.backend_outage import BackendOutage
from supervisor.edges.peers.election.order_delivery import OrderDelivery, ResignedError
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.stream.cluster_server import ClusterServer
from supervisor.edges.peers.transport import gc_tuning
from supervisor.ports.edges import Post
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError, Lead, LeadLostError
from supervisor.ports.timed_waits import pause

_log = logging.getLogger("holdfast.cluster")


class LeaderTerm:
    """One lead, from election to end."""

    def __init__(
        self, voter: Voter, lead: Lead, post: Post, vouch: Callable[[float], None], fence_until_s: Callable[[], float],
        on_aside: Callable[[str, Aside], None], *, on_parted: Callable[[str, str], None], outage: BackendOutage,
        asked_at_s: float, found: Ledger, witnesses: tuple[str, ...],
    ) -> None:  # fmt: skip
        """`vouch` moves the fence of this node, and `fence_until_s` tells it; `found`: the ledger of this run.

        `witnesses`: those that the backend names.
        """
        self._voter = voter
        self._post = post
        self._vouch = vouch
        self._fence_until_s = fence_until_s
        now_s = anyio.current_time()
        self._renewal = lead_renewal.initial_state(lead.ttl_s, asked_at_s=asked_at_s, now_s=now_s)
        self._heartbeats = leader_heartbeats.State(voter.node)
        self.lead = lead
        self.found = found
        self.gate = OrderDelivery(self._deliver, outage, valid_until_s=asked_at_s + lead.ttl_s, witnesses=witnesses)
        self.server = ClusterServer(
            job_id=voter.job_id,
            own_name=voter.node,
            on_report=self._take,
            on_aside=on_aside,
            on_parted=on_parted,
            tls=voter.tls,
            term=lead.term,
            fan_out=voter.fan_out,
            nodes_max=voter.others_max,
            may_answer=self._may_answer,
            on_confirmed=self._note_confirmed,
        )
        self.has_resigned = False
        self._ended = ""
        self._is_concluded = False

    async def run(
        self, listeners: list[socket.socket], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> str:
        """Leads; returns why the lead ended."""
        async with anyio.create_task_group() as tasks:

            async def until_lost(work: Callable[[], Coroutine[None, None, None]]) -> None:
                try:
                    await work()
                except (LeadLostError, ResignedError) as error:
                    self.has_resigned = isinstance(error, ResignedError)
                    self._ended = str(error)
                    tasks.cancel_scope.cancel()

            gc_tuning.collect_seldom(self._voter.others_max)
            await tasks.start(self.server.run, listeners)
            tasks.start_soon(until_lost, lambda: self.gate.run(self._write))
            tasks.start_soon(until_lost, self._keep)
            task_status.started()
        return self._ended

    async def end(self) -> None:
        """Gives the lead up, so that others do not wait for it to expire."""
        if not self._ended or self.has_resigned:
            await self._keep_last(self.ledger)
            await self.lead.resign()

    async def conclude(self) -> None:
        """Resigns: all present nodes know the verdict. An absent node finds it in the ledger and starts nothing."""
        if self.ledger.verdict is not None:
            await self._keep_last(after_all_know(self.ledger, self.lead.term))
            await self.lead.resign()

    @property
    def ledger(self) -> Ledger:
        """Returns the ledger as the backend has it, as far as this leader knows."""
        return self.gate.last_recorded or self.found

    async def _keep_last(self, ended: Ledger) -> None:
        """Keeps the last ledger for some minutes. Before, there was no limit: a backend may drop limited data early."""
        if ended.verdict is None or self._is_concluded:
            return
        with (
            suppress(LeadLostError, BackendUnavailableError, BackendRefusedError),
            anyio.move_on_after(self.lead.ttl_s),
        ):
            await self.lead.write(msgspec.json.encode(ended), is_last=True)
            self._is_concluded = True

    def _deliver(self, node: str, order: orders.Order) -> None:
        if node == self._voter.node:
            self._post(Ordered(self._voter.job_id, order))
        else:
            self.server.send(node, order)

    def _take(self, reported: Reported) -> None:
        if isinstance(reported.report, NodeLost):
            self.gate.forget(reported.report.node)
        self._post(reported)

    async def _write(self, ledger: Ledger) -> None:
        await self.lead.write(msgspec.json.encode(ledger), is_last=False)
        self._heartbeats = leader_heartbeats.with_ledger(self._heartbeats, ledger)
        nobody = lead_renewal.nobody_else_leads(
            self._renewal,
            now_s=anyio.current_time(),
            heard_at_s=self._heard_at_s(),
            confirmed_at_s=leader_heartbeats.last_confirmed_s(self._heartbeats),
        )
        self._perform((nobody,))

    async def _keep(self) -> None:
        """Renews the lead. Raises LeadLostError."""
        while True:
            deadline_s = lead_renewal.next_deadline_s(self._renewal)
            assert deadline_s is not None, "each question has been answered"
            await pause(deadline_s - anyio.current_time(), why="a lead is renewed in time")
            for action in self._renew_with(lead_renewal.DeadlineReached()):
                if isinstance(action, lead_renewal.Renew):
                    self._beat()
                    self._perform(self._renew_with(await self._renewed(action.timeout_s)))

    async def _renewed(self, timeout_s: float) -> lead_renewal.Renewed | lead_renewal.NotRenewed:
        try:
            with anyio.fail_after(timeout_s):
                await self.lead.renew()
        except (BackendUnavailableError, BackendRefusedError, TimeoutError):
            return lead_renewal.NotRenewed()
        return lead_renewal.Renewed()

    def _renew_with(self, event: lead_renewal.Event) -> tuple[lead_renewal.Action, ...]:
        self._renewal, actions = lead_renewal.step(
            self._renewal,
            event,
            now_s=anyio.current_time(),
            heard_at_s=self._heard_at_s(),
            confirmed_at_s=leader_heartbeats.last_confirmed_s(self._heartbeats),
            fence_until_s=self._fence_until_s(),
            waits_since_s=self.gate.waits_since_s,
            join_timeout_s=self._voter.join_timeout_s,
        )
        return actions

    def _perform(self, actions: tuple[lead_renewal.Action, ...]) -> None:
        for action in actions:
            match action:
                case lead_renewal.ExtendLead(valid_until_s):
                    self.gate.extend(valid_until_s)
                case lead_renewal.NobodyElseLeads(known_at_s):
                    self._vouch(known_at_s)
                case lead_renewal.EndLead(reason):
                    raise LeadLostError(reason)
                case lead_renewal.Renew():
                    pass

    # --- heartbeats and answers ------------------------------------------------------------------------------------

    def _beat(self) -> None:
        for node, heartbeat in leader_heartbeats.heartbeats(self._heartbeats, anyio.current_time()).items():
            self.server.beat(node, heartbeat)

    def _note_confirmed(self, node: str, heartbeat: LeaderHeartbeat) -> None:
        self._heartbeats = leader_heartbeats.confirmed(self._heartbeats, node, heartbeat)

    def _may_answer(self) -> bool:
        return anyio.current_time() < lead_renewal.answers_until_s(self._renewal, self._heard_at_s())

    def _heard_at_s(self) -> list[float | None]:
        return [
            anyio.current_time() if each == self._voter.node else self.server.heard_at_s(each)
            for each in self.gate.witnesses
        ]


def read_ledger(state: bytes) -> Ledger:
    """Decodes the ledger. An unreadable one says nothing: the nodes know their cycle and their budget at that time."""
    try:
        return msgspec.json.decode(state, type=Ledger) if state else Ledger()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("what the last leader has left can't be read: %s", error)
        return Ledger()
