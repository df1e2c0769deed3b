"""How do orders and reports travel if the leader is elected?

core/election/candidate.py decides whom this node follows, when it asks to lead, and when it gives up.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress

import anyio
from anyio.abc import TaskGroup

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import Event, Reported
from supervisor.core.election import candidate
from supervisor.core.election.leader import Leader
from supervisor.core.election.node_fence import MoveFence, NobodyElse
from supervisor.core.fence_times import FENCE_S
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import FenceMoved, Ordered
from supervisor.core.session_state import Candidate, JobSessions
from supervisor.edges.machine.own_process.kernel_error_remedies import in_words
from supervisor.edges.peers.codec.cluster_frames import Aside
from supervisor.edges.peers.election import election_hand_over
from supervisor.edges.peers.election.backend_outage import BackendOutage
from supervisor.edges.peers.election.leader_term import LeaderTerm, read_ledger
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.questions.request_router import CLOSED, RequestRouter, refuse
from supervisor.edges.peers.stream.cluster_client import SPAWNER_LATER_S, ClusterClient
from supervisor.edges.peers.stream.session_store import SessionStore
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.ports.edges import Post
from supervisor.ports.questions import TakeQuestion
from supervisor.ports.rendezvous_backend import (
    BackendRefusedError,
    BackendUnavailableError,
    EndsLeads,
    KnowsPrevious,
    Lead,
    LeadsAbove,
    ProvesItsAge,
    RendezvousBackend,
)
from supervisor.ports.timed_waits import pause

WATCH, ELECT, LISTEN = "watch who leads it", "elect a leader", "listen as its leader"  # see BackendOutage
WATCH_AGAIN_S = 0.5
ASK_TIMEOUT_S = 1.0

_log = logging.getLogger("holdfast.cluster")


class ElectedPeers:
    """Peers of a node whose leader is elected; see ports.Peers. `run` does everything."""

    def __init__(
        self,
        voter: Voter,
        backend: RendezvousBackend,
        post: Post,
        session_store: SessionStore | None = None,
        *,
        take_question: TakeQuestion = refuse,
    ) -> None:
        """With what is kept in the `session_store`, this process goes on as the node that the one before it was."""
        self._outage = BackendOutage(voter.job_id)
        self._not_listening = BackendOutage(voter.job_id)
        self.node_requests = RequestRouter(
            own_name=voter.node, leads=False, pass_on=self._pass_on, take_question=take_question,
            outage=self._outage.clause,
        )  # fmt: skip
        self._voter = voter
        self._backend = backend
        self._post = post
        self._session_store = session_store or SessionStore()
        self._client: ClusterClient | None = None  # of the leader that is followed
        self._link = anyio.CancelScope()  # ends the connection to it
        self._lost: list[str] = []  # why
        self._led_by = ""  # the node that was followed last
        self._won: tuple[Lead, float] | None = None  # and when it was asked for
        self._leader_term: LeaderTerm | None = None
        self._tasks: TaskGroup | None = None
        self._works: list[Callable[[], Coroutine[None, None, None]]] = []  # that `run` starts
        self._is_opened = anyio.Event()
        self._is_over = anyio.Event()
        self._is_due = anyio.Event()
        self._due_s = float("inf")
        kept = self._session_store.kept
        self._state = election_hand_over.begun(voter, secrets.token_hex(4), kept, now_s=anyio.current_time())
        self._goes_on: candidate.Opened | None = None  # with the job of the process before this one
        if kept is not None and kept.candidate is not None:
            leader = election_hand_over.followed(kept)
            self._client = self._client_of(leader, kept) if leader is not None else None
            self._goes_on = candidate.Opened(leader)
            self._is_opened.set()

    def session_state(self, *, whole: bool = True) -> JobSessions:
        """Returns what is kept for a supervisor that comes back; all of it may go out from now on."""
        del whole  # a new leader learns the rest from the nodes
        state, leader_term = self._state, self._leader_term
        known_at_s = state.fence.until_s - FENCE_S
        return election_hand_over.session_state(
            JobSessions(known_at_s=known_at_s, has_stopped=state.has_stopped, lost=state.over),
            Candidate(state.process, state.met_term, wishes=state.requests),
            client=self._client,
            leader=state.seen,
            own_term=leader_term.lead.term if leader_term is not None else 0,
        )

    @property
    def may_train(self) -> bool:
        """Returns whether ranks of the job may run on this node now."""
        return anyio.current_time() < self._state.fence.until_s

    @property
    def leader_host(self) -> str:
        """Returns the address of the node that leads now, as far as known; "": nobody leads."""
        if self._leader_term is not None:
            return self._voter.host
        return _address(self._state.seen.address).host if self._state.seen is not None else ""

    # --- ports.Peers -----------------------------------------------------------------------------------------------

    def leads(self, job_id: str) -> bool:
        del job_id
        return self._leader_term is not None

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        del job_id
        if self._leader_term is not None:  # else LeadershipLost is behind what the engine handles now
            self._leader_term.gate.send(node, order)

    def record(self, job_id: str, ledger: Ledger) -> None:
        del job_id
        if self._leader_term is not None:  # as in `send`
            self._leader_term.gate.record(ledger)

    def report(self, job_id: str, report: Event) -> None:
        """Reports an event. If nobody leads, the next leader learns it from this node's state then."""
        del job_id
        self._go_on()
        self._take(candidate.Said(report))
        self._is_opened.set()

    def _go_on(self) -> None:
        if (goes_on := self._goes_on) is not None:
            self._goes_on = None
            self._take(goes_on)

    def _pass_on(self, node: str, aside: Aside) -> bool:
        if self._leader_term is not None:
            return self._leader_term.server.say_aside(node, aside)
        return self._client is not None and self._client.say_aside(aside)

    async def until_all_is_heard(self) -> None:
        if self._leader_term is not None:
            await self._leader_term.gate.until_empty()
            await self._leader_term.server.until_all_is_heard()
            await self._leader_term.conclude()
        elif self._client is not None:
            await self._client.until_all_is_heard()

    async def until_all_have_left(self) -> None:
        if (leader_term := self._leader_term) is not None:
            await leader_term.gate.until_empty()
            await leader_term.server.until_all_is_heard()
            await leader_term.server.until_all_have_left()

    # --- decisions -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled, or until this node has given up."""
        try:
            await self._is_opened.wait()  # Before that, the engine has no job to lead.
            self._go_on()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch)
                await self._end_own_lead()
                self._tasks = tasks
                for work in self._works:
                    tasks.start_soon(work)
                tasks.start_soon(self._keep_time)
                await self._is_over.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.node_requests.parted(None, CLOSED)

    async def _keep_time(self) -> None:
        while True:
            self._is_due = anyio.Event()
            due_s = candidate.next_deadline_s(self._state)
            self._due_s = due_s if due_s is not None else float("inf")
            with anyio.CancelScope(deadline=self._due_s):
                await self._is_due.wait()
            self._take(candidate.DeadlineReached())

    def _take(self, event: candidate.Event) -> None:
        now_s = anyio.current_time()
        self._state, actions = candidate.step(self._state, event, now_s=now_s, jitter=random.random())
        for action in actions:
            self._perform(action)
        due_s = candidate.next_deadline_s(self._state)
        if due_s is not None and due_s < self._due_s:
            self._is_due.set()
        if self._state.over:
            self._is_over.set()

    def _perform(self, action: candidate.Action) -> None:
        job_id = self._voter.job_id
        match action:
            case candidate.Obey(order):
                self._post(Ordered(job_id, order))
            case candidate.Coordinate(report):
                self._post(Reported(job_id, report))
            case candidate.Report(report):
                assert self._client is not None, "a node that follows has a client"
                self._client.report(Reported(job_id, report))
            case MoveFence(until_s):
                self._post(FenceMoved(job_id, until_s + SPAWNER_LATER_S))
            case candidate.Follow(leader):
                if self._led_by not in ("", leader.node):
                    _log.warning(
                        "job %s is led by node %s now, no longer by node %s", job_id, leader.node, self._led_by
                    )
                self._led_by = leader.node
                self._client = client = self._client or self._client_of(leader, None)
                self._link = anyio.CancelScope()
                self._start(lambda: self._follow(client, self._link))
            case candidate.Unfollow():
                self._link.cancel()
            case candidate.AskForLead(above):
                self._start(lambda: self._ask_for_lead(above))
            case candidate.AskWhoLeads():
                self._start(self._ask_who_leads)
            case candidate.Lead(found=found, witnesses=witnesses):
                self._begin_leader_term(found, witnesses)
            case candidate.WriteAgain():
                if self._leader_term is not None:
                    self._leader_term.gate.write_again()

    def _start(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._tasks is None:
            self._works.append(work)
        else:
            self._tasks.start_soon(work)

    def _vouch(self, known_at_s: float) -> None:
        """Moves the node's fence: at `known_at_s`, no other node could replace this one."""
        self._take(NobodyElse(known_at_s))

    # --- who leads -------------------------------------------------------------------------------------------------

    async def _end_own_lead(self) -> None:
        """Ends the lead of the previous process, so nobody waits until it expires. It may have ended already."""
        kept = self._session_store.kept
        if kept is not None and kept.leads and kept.term is not None and isinstance(self._backend, EndsLeads):
            with suppress(BackendUnavailableError, BackendRefusedError), anyio.move_on_after(ASK_TIMEOUT_S):
                await self._backend.end_lead(kept.term)

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(self._backend.leaders()) as leaders:
                    async for leader in leaders:
                        self._outage.worked(WATCH)
                        self._take(candidate.LeaderSeen(leader))
            except BackendUnavailableError as error:
                self._outage.failed(WATCH, error)
            except BackendRefusedError as error:
                self._refuse(error)
            await pause(WATCH_AGAIN_S, why="nothing tells when the backend works again")

    async def _ask_who_leads(self) -> None:
        answer = candidate.LeaderAnswered()
        asked_at_s = anyio.current_time()
        with suppress(BackendUnavailableError, BackendRefusedError, TimeoutError), anyio.fail_after(ASK_TIMEOUT_S):
            answer = candidate.LeaderAnswered(await self._backend.leader(), asked_at_s)
        self._take(answer)

    def _refuse(self, error: BackendRefusedError) -> None:
        _log.warning("cannot ask who leads job %s: %s", self._voter.job_id, error)
        self._take(candidate.BackendRefused(str(error)))

    # --- as a follower ---------------------------------------------------------------------------------------------

    async def _follow(self, client: ClusterClient, link: anyio.CancelScope) -> None:
        """Follows a leader until it is no longer heard."""
        with link:
            await client.run(join_timeout_s=FENCE_S, ranks_until_s=self._state.fence.until_s)
        self._client = None
        why = self._lost[0] if self._lost else "its connection ended"
        if not link.cancel_called:
            then = "" if client.is_refused else "; the next leader is looked for"
            _log.warning("the leader of job %s is no longer heard: %s%s", self._voter.job_id, why, then)
        was_heard = client.known_at_s is not None
        heard_leader = client.heard_leader
        self._take(candidate.LinkLost(why, client.said_at_s, was_heard, client.is_refused, heard_leader))

    def _client_of(self, leader: Leader, kept: JobSessions | None) -> ClusterClient:
        voter, self._lost = self._voter, []
        return ClusterClient(
            _address(leader.address),
            job_id=voter.job_id,
            own_name=voter.node,
            on_order=self._post,
            on_lost=self._lost.append,
            on_fence=lambda until_s: self._vouch(until_s - FENCE_S),
            on_aside=self.node_requests.take,
            tls=voter.tls,
            session_store=SessionStore(self._session_store.keep, kept),
        )

    # --- as a leader -----------------------------------------------------------------------------------------------

    async def _ask_for_lead(self, above: int) -> None:
        """Asks the backend for the lead, and leads if this node wins it."""
        voter = self._voter
        if (listeners := await self._listeners()) is None:
            return
        asked_at_s = anyio.current_time()
        lead: Lead | None = None
        try:
            address = PeerAddress(voter.host, int(listeners[0].getsockname()[1]))
            if isinstance(self._backend, LeadsAbove):
                lead = await self._backend.try_to_lead_above(voter.node, str(address), above)
            else:
                lead = await self._backend.try_to_lead(voter.node, str(address))
            self._outage.worked(ELECT)
        except BackendUnavailableError as error:
            self._outage.failed(ELECT, error)
        except BackendRefusedError as error:
            self._refuse(error)
        finally:
            for each in listeners if lead is None else ():
                each.close()
        if lead is None:
            self._take(candidate.LeadNotWon())
            return
        self._won = lead, asked_at_s
        held_for_s = lead.held_for_s if isinstance(lead, ProvesItsAge) else 0.0
        previous_term = lead.previous_term if isinstance(lead, KnowsPrevious) else 0
        self._take(candidate.LeadWon(lead.term, read_ledger(lead.state), held_for_s, previous_term))
        assert self._leader_term is not None, "a won lead is led"
        leader_term, why = self._leader_term, "it ends"
        try:
            why = await leader_term.run(listeners)
        finally:
            for each in listeners:  # The server closes them, unless it was cancelled before it began.
                each.close()
            self._leader_term = None
            self.node_requests.is_leader = False
            self._take(candidate.LeadLost(why, leader_term.has_resigned, leader_term.ledger))
            with anyio.CancelScope(shield=True):
                await leader_term.end()
        _log.warning("this node no longer leads job %s: %s", voter.job_id, why)
        self._take(candidate.Left())

    async def _listeners(self) -> list[socket.socket] | None:
        """Listens as a leader. Tells the candidate if that is not possible, and returns None then."""
        host = self._voter.host
        try:
            listeners = await listen(PeerAddress(host, 0))
        except OSError as error:  # such as no descriptor, which may be there in a moment
            self._not_listening.failed(LISTEN, in_words(error) or error.strerror or error)
            self._take(candidate.LeadNotWon())
            return None
        if listeners is not None:
            self._not_listening.worked(LISTEN)
            return listeners
        why = f"cannot listen at {host}: it is not an address of this node; check --local-addr"
        self._take(candidate.Unable(why))
        if not self._state.over:
            self._not_listening.failed(LISTEN, why)
        return None

    def _begin_leader_term(self, found: Ledger, witnesses: tuple[str, ...]) -> None:
        assert self._won is not None, "the lead was won"
        lead, asked_at_s = self._won
        self._leader_term = LeaderTerm(
            self._voter, lead, self._post, self._vouch, lambda: self._state.fence.until_s, self.node_requests.take,
            on_parted=self.node_requests.parted, outage=self._outage, asked_at_s=asked_at_s, found=found,
            witnesses=witnesses,
        )  # fmt: skip
        self.node_requests.is_leader = True
        _log.info("this node leads job %s (term %d)", self._voter.job_id, lead.term)


def _address(text: str) -> PeerAddress:
    host, _, port = text.rpartition(":")
    return PeerAddress(host.strip("[]"), int(port) if port.isdecimal() else 0)
