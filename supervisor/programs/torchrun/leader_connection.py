"""How does an agent stay in touch with its rendezvous' leader, whichever agent that is, and what does a loss mean?

In a job with a fixed number of nodes and no spares, the leader's loss alone stops no worker: nobody else can form a
group. If there are spares, or the number may vary, the others may continue without this node, so its workers must stop
before that. If the same leader is met again after a loss, it has given this node up meanwhile, and the others no longer
count on its workers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from supervisor.core.elastic.elastic_messages import (
    AgentJoined,
    AgentLeft,
    BeginRound,
    ElasticOrder,
    ElasticReport,
    ElasticRules,
    Refusal,
    RefuseAgent,
    ServeRoundStore,
    TellClosed,
    TellSpares,
    TellWaiting,
)
from supervisor.edges.peers.elastic.elastic_peers import LOOK_S, ElasticMeeting, ElasticPeers, open_elastic

LOOK_AGAIN_S = 0.05  # at least

_log = logging.getLogger("holdfast.torchrun")


class Unreachable(msgspec.Struct, frozen=True):
    """No leader can admit this agent."""

    reason: str


ForAgent = ServeRoundStore | BeginRound | RefuseAgent | Unreachable
Deliver = Callable[[int, int, ForAgent], None]  # number of the request, and of the meeting


class LeaderConnection:
    """Keeps in touch. Use it from the event loop's thread; any thread may read `waiting` and `closed`."""

    def __init__(
        self,
        meeting: ElasticMeeting,
        rules: ElasticRules,
        deliver: Deliver,
        is_led_here: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`deliver` gets the leader's orders for the newest request.

        `is_led_here` returns whether another process of this node leads; asked before this one tries to lead.
        """
        self._meeting = meeting
        self._rules = rules
        self._is_led_here = is_led_here
        self.waiting = 0
        self.closed: TellClosed | None = None
        self._meetings = 0  # number of successive leaders; messages of an earlier meeting are void
        self._peers: ElasticPeers | None = None
        self._deliver = deliver
        self._number = 0  # of the newest request
        self._request: AgentJoined | None = None  # also sent to a next leader
        self._request_until_s = 0.0
        self._requested = anyio.Event()
        self._is_member = False
        self._is_loss_told = False
        self._has_spares = False  # by the leader's last word in this round
        self._term = 0  # of the other agent that leads now; 0: none, or not met yet
        self._round_term = 0  # the same when the round began

    async def run(self) -> None:
        """Runs until cancelled, or until the rendezvous is closed and its leader gone. Starts with the first
        request."""
        await self._requested.wait()
        while self.closed is None:
            await self._meet()

    def want(self, number: int, order: int) -> None:
        """Requests a part in the next round. Orders come with the `number` of this request and that of their
        meeting."""
        self.waiting, self._is_member, self._number = 0, False, number
        if self.closed is not None:
            self._answer(RefuseAgent(Refusal.CLOSED, self.closed.reason))
            return
        self._request = AgentJoined(self._meeting.node, self._rules, order)
        self._request_until_s = anyio.current_time() + self._rules.join_timeout_s
        self._requested.set()
        if self._peers is not None:
            self._peers.report(self._request)

    def say(self, report: ElasticReport, *, meeting: int | None = None) -> None:
        """Sends it to the current leader, unless it is meant for an earlier one."""
        if self._peers is not None and meeting in (None, self._meetings):
            self._peers.report(report)

    async def part(self, reason: str) -> None:
        """Leaves; returns once everything sent was heard."""
        peers = self._peers
        if peers is None or not peers.is_known:
            return
        peers.report(AgentLeft(self._meeting.node, reason))
        if peers.leads or self.closed is None:  # a leader that has closed the rendezvous may be gone already
            await peers.until_all_is_heard()

    async def _meet(self) -> None:
        self._meetings += 1
        self._term = 0
        self._requested = anyio.Event()
        lost = anyio.Event()
        why = ""
        is_for_good = False

        def lose(reason: str, for_good: bool) -> None:
            nonlocal why, is_for_good
            why, is_for_good = reason, for_good
            lost.set()

        meeting = self._meeting
        if self._is_led_here is not None and await self._is_led_here():
            meeting = msgspec.structs.replace(meeting, leads=False)
        try:
            opened = open_elastic(meeting, on_order=self._take, on_lost=lose, on_met=self._met, look_s=self._look_s())
            async with opened as self._peers:
                if self._request is not None:
                    self._peers.report(self._request)
                await lost.wait()
                self._peers.forget()
        except OSError as error:
            why, is_for_good = f"cannot listen at {self._meeting.endpoint}: {error.strerror}", True
        finally:
            self._peers = None
        self._miss(why, is_for_good)
        if is_for_good and self._request is None and self.closed is None:
            await self._requested.wait()

    def _look_s(self) -> float:
        left_s = self._request_until_s - anyio.current_time() if self._request is not None else LOOK_S
        return min(LOOK_S, max(LOOK_AGAIN_S, left_s))

    def _take(self, order: ElasticOrder) -> None:
        match order:
            case TellWaiting(waiting, reason):
                self.waiting = waiting
                if waiting and self.closed is None:
                    _log.warning("holdfast: the workers restart: %s", reason)
            case TellSpares(exist):
                self._has_spares = exist
            case TellClosed(reason, failed):
                self.closed = order
                if failed and self._is_member:
                    _log.warning("holdfast: the workers stop: %s", reason)
            case BeginRound():
                self._request, self.waiting, self._is_member, self._is_loss_told = None, 0, True, False
                self._has_spares, self._round_term = False, self._term
                self._answer(order)
            case RefuseAgent():
                self._request = None
                self._answer(order)
            case ServeRoundStore():
                self._answer(order)

    def _met(self, term: int) -> None:
        self._term = term
        was_given_up = self._is_member and self._is_loss_told and term == self._round_term
        if was_given_up and self._request is None and not self.waiting and self.closed is None:
            self.waiting = 1
            _log.warning("holdfast: the workers restart: the leader had given this node up, and answers again")

    def _miss(self, why: str, is_for_good: bool) -> None:
        if self._is_member and self.closed is None and not self._is_loss_told:
            self._is_loss_told = True
            if self._has_spares or self._rules.min_nodes < self._rules.max_nodes:
                self.waiting = max(1, self.waiting)
                _log.warning("holdfast: the workers stop, since other nodes may go on without this one: %s", why)
            else:
                _log.warning("holdfast: the workers go on, but can't be restarted without a leader: %s", why)
        if self._request is not None and (is_for_good or anyio.current_time() >= self._request_until_s):
            self._request = None
            self._answer(Unreachable(why))

    def _answer(self, order: ForAgent) -> None:
        self._deliver(self._number, self._meetings, order)
