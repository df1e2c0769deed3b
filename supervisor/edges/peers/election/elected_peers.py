"""How do orders and reports travel if the leader is elected, and what does a node do while there is none?

Each node watches who leads, and tries to lead while nobody does. The loss of the backend or the leader does not itself
stop training: core/fence.py decides how long a node may train without a leader.
"""

from __future__ import annotations

import logging
import random
import secrets
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
    NodeStands,
    NodeStopped,
    Reported,
)
from supervisor.core.correspondence import Candidate, Correspondence, StandingWish, Wish
from supervisor.core.facts import JobRules, JobState, Verdict
from supervisor.core.fence import FENCE_S, HEARD_S
from supervisor.core.ledger import Ledger
from supervisor.core.node.messages import Ordered
from supervisor.edges.peers.archive import Archive
from supervisor.edges.peers.cluster_client import ClusterClient
from supervisor.edges.peers.cluster_frames import Aside
from supervisor.edges.peers.cluster_link import PeerAddress
from supervisor.edges.peers.election import candidacy
from supervisor.edges.peers.election.own_fence import OwnFence
from supervisor.edges.peers.election.reign import Reign
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.listening import listen
from supervisor.edges.peers.switchboard import Switchboard
from supervisor.errors import NotNowError
from supervisor.pauses import pause
from supervisor.ports import Post
from supervisor.rendezvous_backend import (
    BackendRefusedError,
    BackendUnavailableError,
    EndsLeads,
    Lead,
    Leader,
    RendezvousBackend,
)

JITTER_S = 0.2  # before a node tries to lead, so that not all try at once
AGAIN_S = 0.5
ASK_TIMEOUT_S = 1.0
WISHES_KEPT_S = 10.0  # a person's request is repeated to a new leader that comes within this time

_log = logging.getLogger("holdfast.cluster")


class _Unknown:
    """Nothing was heard from the backend yet."""


class ElectedPeers:
    """Peers of a node whose leader is elected; see ports.Peers. `run` does everything."""

    def __init__(
        self, voter: Voter, backend: RendezvousBackend, post: Post, tasks: TaskGroup, archive: Archive | None = None
    ) -> None:
        """With what is kept in the `archive`, this process goes on as the node that the one before it was."""
        self.colleagues = Switchboard(own_name=voter.node, leads=False, tasks=tasks, pass_on=self._pass_on)
        self._voter = voter
        self._backend = backend
        self._post = post
        self._seen: Leader | _Unknown | None = _Unknown()
        self._newest_term = 0
        self._changed = anyio.Event()
        self._is_opened = anyio.Event()
        self._client: ClusterClient | None = None
        self._lost: list[str] = []  # why
        self._reign: Reign | None = None
        self._fence = OwnFence(voter.job_id, voter.node, post)
        self._process = secrets.token_hex(4)
        self._left_at_s: float | None = None  # when the previous leader may last have heard this node
        self._met_term = 0  # of the first leader that this process met; 0: none yet
        self._waits_since_s: float | None = anyio.current_time()  # waits for a leader while nothing runs
        self._wishes: list[tuple[float, Wish]] = []
        self._has_stopped = False  # as reported
        self._over = ""
        self._archive = archive or Archive()
        self._go_on(self._archive.kept)
        self._archive.read = self.letters

    def _go_on(self, kept: Correspondence | None) -> None:
        if kept is None or kept.candidate is None:
            return
        before = kept.candidate
        self._process, self._met_term, self._wishes = before.process, before.met_term, list(before.wishes)
        self._has_stopped, self._over, self._newest_term = kept.has_stopped, kept.lost, kept.term or 0
        self._fence = OwnFence(self._voter.job_id, self._voter.node, self._post, known_at_s=kept.known_at_s)
        if self._met_term:  # When the process before this one has said its last word, nobody knows.
            self._left_at_s, self._waits_since_s = anyio.current_time(), None
        leader = candidacy.followed(kept)
        if leader is not None:
            self._seen, self._client = leader, self._client_of(leader, kept)
        self._is_opened.set()

    def letters(self) -> Correspondence:
        """What is kept for a supervisor that comes back, and may go out from now on."""
        seen, reign = self._seen, self._reign
        known_at_s = self._fence.until_s - FENCE_S
        return candidacy.letters(
            Correspondence(known_at_s=known_at_s, has_stopped=self._has_stopped, lost=self._over),
            Candidate(self._process, self._met_term, wishes=tuple(self._wishes)),
            client=self._client,
            leader=seen if isinstance(seen, Leader) else None,
            own_term=reign.lead.term if reign is not None else 0,
        )

    @property
    def leader_host(self) -> str:
        """Returns the address of the node that leads now, as far as known; "": nobody leads."""
        if self._reign is not None:
            return self._voter.host
        return _address(self._seen.address).host if isinstance(self._seen, Leader) else ""

    # --- ports.Peers -----------------------------------------------------------------------------------------------

    def leads(self, job_id: str) -> bool:
        del job_id
        return self._reign is not None

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        if self._reign is None:
            raise NotNowError(f"cannot give an order to node {node}: another node leads job {job_id}")
        self._reign.gate.send(node, order)

    def record(self, job_id: str, ledger: Ledger) -> None:
        if self._reign is None:
            raise NotNowError(f"cannot record anything of job {job_id}: another node leads it")
        self._reign.gate.record(ledger)

    def report(self, job_id: str, report: Event) -> None:
        """Reports an event. If nobody leads, the next leader learns it from this node's state then."""
        self._is_opened.set()
        now_s = anyio.current_time()
        if isinstance(report, Wish):
            self._wishes.append((now_s, report))
        self._has_stopped = self._has_stopped or isinstance(report, NodeStopped)
        if self._over:
            if isinstance(report, NodeStopped):
                self._conclude()
            return
        if isinstance(report, NodeStands):
            left_ago_s = max(0.0, now_s - self._left_at_s) if self._left_at_s is not None else 0.0
            report = msgspec.structs.replace(
                report, rules=self._with_process(report.rules), left_ago_s=left_ago_s, met_term=self._met_term
            )
        self._leave(report)
        if isinstance(report, NodeStands):
            for at_s, wish in self._wishes:
                if isinstance(wish, StandingWish) or now_s - at_s < WISHES_KEPT_S:
                    self._leave(wish)

    def _with_process(self, rules: JobRules) -> JobRules:
        facts = msgspec.structs.replace(rules.facts, process=self._process)
        return msgspec.structs.replace(rules, facts=facts)

    def _pass_on(self, node: str, aside: Aside) -> bool:
        if self._reign is not None:
            return self._reign.server.say_aside(node, aside)
        return self._client is not None and self._client.say_aside(aside)

    def _leave(self, report: Event) -> None:
        if self._reign is not None:
            self._post(Reported(self._voter.job_id, report))
        elif self._client is not None:
            self._client.report(Reported(self._voter.job_id, report))
        elif self._waits_since_s is None and not isinstance(report, Wish):
            self._waits_since_s = anyio.current_time()

    async def until_all_is_heard(self) -> None:
        if self._reign is not None:
            await self._reign.gate.until_empty()
            await self._reign.server.until_all_is_heard()
            await self._reign.conclude()
        elif self._client is not None:
            await self._client.until_all_is_heard()

    async def until_all_have_left(self) -> None:
        if (reign := self._reign) is not None:
            await reign.gate.until_empty()
            await reign.server.until_all_is_heard()
            await reign.server.until_all_have_left()

    # --- who leads -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled, or until no leader was found in time."""
        await self._is_opened.wait()  # Before that, the engine has no job to lead.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            tasks.start_soon(self._ask_while_unheard)
            tasks.start_soon(self._fence.run)
            await self._end_own_lead()
            while not self._over:
                seen = self._seen
                if isinstance(seen, Leader) and seen.node != self._voter.node:
                    await self._unless_changed(seen, lambda seen=seen: self._follow(seen))
                else:
                    await self._try_to_lead()
                self._end_in_time()
            tasks.cancel_scope.cancel()

    async def _end_own_lead(self) -> None:
        """Of the process before this one, so that nobody waits until it ends by itself. It may have ended already."""
        kept = self._archive.kept
        if kept is not None and kept.leads and kept.term is not None and isinstance(self._backend, EndsLeads):
            with suppress(BackendUnavailableError, BackendRefusedError), anyio.move_on_after(ASK_TIMEOUT_S):
                await self._backend.end_lead(kept.term)

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

    async def _ask_while_unheard(self) -> None:
        """Asks the backend, since a watch may report late or never. If nobody leads now, this node is safe."""
        while True:
            await pause(AGAIN_S, why="nothing tells that a leader does not answer")
            asked_at_s = anyio.current_time()
            if self._reign is not None or self._fence.until_s - asked_at_s > FENCE_S - HEARD_S:
                continue
            try:
                with anyio.fail_after(ASK_TIMEOUT_S):
                    leader = await self._backend.leader()
            except (BackendUnavailableError, BackendRefusedError, TimeoutError):
                continue
            if leader is None:
                self._fence.move(asked_at_s)
            self._see(leader)

    def _see(self, leader: Leader | None) -> None:
        """Notes the leader. News about an earlier leader comes too late to matter."""
        if leader is not None and leader.term < self._newest_term:
            return
        if leader != self._seen:
            self._newest_term = leader.term if leader is not None else self._newest_term
            self._seen = leader
            self._changed.set()

    def _refuse(self, why: str) -> None:
        """Reports a configuration mistake. It ends a job that has not begun; later it is only a warning."""
        if isinstance(self._seen, _Unknown):
            self._give_up(f"cannot elect a leader of job {self._voter.job_id}: {why}; check --rdzv-conf")
        else:
            _log.warning("cannot ask who leads job %s: %s", self._voter.job_id, why)

    async def _unless_changed(
        self, seen: Leader | _Unknown | None, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Runs it until another leader is seen."""
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
        """Follows the leader until it is no longer heard."""
        client, goes_on = self._client, self._client is not None  # with the words of the process before this one
        if client is None:
            client = self._client = self._client_of(leader, None)
        try:
            if not goes_on:
                self._post(Ordered(self._voter.job_id, orders.Introduce()))
            await client.run(join_timeout_s=FENCE_S)
        finally:
            self._client = None
            if client.said_at_s is not None:
                self._left_at_s, self._met_term = client.said_at_s, self._met_term or leader.term
            if client.known_at_s is not None:
                self._waits_since_s = None
        why = self._lost[0] if self._lost else "its connection ended"
        if client.is_refused and self._waits_since_s is not None:
            self._give_up(why)
            return
        _log.warning("the leader of job %s is no longer heard: %s", self._voter.job_id, why)
        await pause(AGAIN_S, why="nothing tells when it can be reached again")

    def _client_of(self, leader: Leader, kept: Correspondence | None) -> ClusterClient:
        voter, self._lost = self._voter, []
        return ClusterClient(
            _address(leader.address),
            job_id=voter.job_id,
            token=voter.token,
            own_name=voter.node,
            on_order=self._post,
            on_lost=self._lost.append,
            on_fence=lambda until_s: self._fence.move(until_s - FENCE_S),
            on_aside=self.colleagues.take,
            tls=voter.tls.follows if voter.tls is not None else None,
            relay_tls=voter.tls.leads if voter.tls is not None else None,
            archive=Archive(self._archive.keep, kept),
        )

    # --- as a leader -----------------------------------------------------------------------------------------------

    async def _try_to_lead(self) -> None:
        self._client = None
        await pause(random.uniform(0, JITTER_S), why="all nodes see at once that nobody leads")
        voter = self._voter
        listeners = await listen(PeerAddress(voter.host, 0))
        if listeners is None:
            self._give_up(f"cannot listen at {voter.host}: it is not an address of this node; check --local-addr")
            return
        asked_at_s = anyio.current_time()
        lead: Lead | None = None
        try:
            address = PeerAddress(voter.host, int(listeners[0].getsockname()[1]))
            lead = await self._backend.try_to_lead(voter.node, str(address))
        except BackendUnavailableError as error:
            _log.warning("cannot elect a leader of job %s: %s; training goes on", voter.job_id, error)
        except BackendRefusedError as error:
            self._refuse(str(error))
        if lead is None:
            for each in listeners:
                each.close()
            with anyio.move_on_after(AGAIN_S):
                await self._unless_changed(self._seen, anyio.Event().wait)
            return
        reign = Reign(
            voter, lead, self._post, self._fence, self.colleagues.take,
            asked_at_s=asked_at_s, met_term=self._met_term,
        )  # fmt: skip
        why = "it ends"
        try:
            self._reign, self._waits_since_s, self._newest_term = reign, None, lead.term
            self.colleagues.is_leader = True
            self._post(Reported(voter.job_id, LeadershipTaken(lead.term, reign.found, reign.former)))
            self._post(Ordered(voter.job_id, orders.Introduce()))
            _log.info("this node leads job %s (term %d)", voter.job_id, lead.term)
            why = await reign.run(listeners)
        finally:
            self._reign = None
            self._left_at_s, self._met_term = anyio.current_time(), self._met_term or lead.term
            self.colleagues.is_leader = False
            self._post(Reported(voter.job_id, LeadershipLost(why)))
            with anyio.CancelScope(shield=True):
                await reign.end()
        _log.warning("this node no longer leads job %s: %s", voter.job_id, why)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _end_in_time(self) -> None:
        if self._waits_since_s is None and anyio.current_time() >= self._fence.until_s:
            self._waits_since_s = anyio.current_time()  # the workers have ended
        if self._waits_since_s is None or self._over:
            return
        if anyio.current_time() - self._waits_since_s > self._voter.join_timeout_s:
            self._give_up(f"no leader of job {self._voter.job_id} was found for {self._voter.join_timeout_s:g} s")

    def _give_up(self, why: str) -> None:
        self._over = why
        self._changed.set()
        if self._has_stopped:  # the lost leader did not say how the job ends, and nobody else will
            self._conclude()
        else:
            self._post(Ordered(self._voter.job_id, orders.WindDown(why, at_once=True)))

    def _conclude(self) -> None:
        failed = orders.Conclude(Verdict(JobState.FAILED, 1, self._over))
        self._post(Ordered(self._voter.job_id, failed))


def _address(text: str) -> PeerAddress:
    host, _, port = text.rpartition(":")
    return PeerAddress(host.strip("[]"), int(port) if port.isdecimal() else 0)
