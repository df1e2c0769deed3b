"""How does a node find the leader of its job, and stay in touch with it?

The leader may start later than its nodes, and a connection may break: the node retries in both cases, until
core/election/leader_loss_detection.py gives the leader up.
"""

from __future__ import annotations

import asyncio  # anyio has neither callbacks nor a timer of its own
import logging
import math
import random
import secrets
import ssl
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup
from holdfast_wire.framing import FrameTooLongError

from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.election import leader_heartbeats, leader_loss_detection, link_silence
from supervisor.core.node.node_messages import Ordered
from supervisor.core.session_state import JobSessions
from supervisor.edges.peers.codec import cluster_codec, cluster_frames, cluster_versions, heartbeats
from supervisor.edges.peers.codec.cluster_frames import (
    Answered,
    Aside,
    Asked,
    ClusterProtocolError,
    ElasticOrdered,
    ElasticReported,
    ServeRelay,
    Unknown,
)
from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.relays.own_relay import INTRODUCED_S, OwnRelay
from supervisor.edges.peers.relays.relay_client import RelayClient
from supervisor.edges.peers.stream.session_store import SessionStore
from supervisor.edges.peers.transport import cluster_connect, cluster_tls
from supervisor.edges.peers.transport.cluster_line import Line, LinkLostError
from supervisor.edges.peers.transport.cluster_link import Conversation, PeerAddress
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import Pipe, Tls, token_of
from supervisor.edges.peers.transport.preamble import (
    AGAIN,
    CONNECTS_HERE,
    IS_RELAY,
    MAY_BE_REDIRECTED,
    Preamble,
    key_of,
)
from supervisor.ports.timed_waits import pause

SPAWNER_LATER_S = 0.4  # the spawner acts if this process is stopped; with FENCE_S, it is still less than LOST_S
CONNECT_S = 5.0
PUT_OFF_S = 0.2
AGAIN_S = (0.05, 0.1, 0.2, 0.5)  # pauses before the next attempts; the last one repeats
RENEWED_S = 2 * cluster_tls.READ_AGAIN_S  # a leader with a slow disk has read its certificate again by then
BRIEF_S = 1.0  # a connection that ends sooner may have been ended for what this node sends, again and again

_log = logging.getLogger("holdfast.cluster")


class RefusedError(Exception):
    """Raised if the leader does not accept this node; another attempt would not help."""


class LeaderChangedError(Exception):
    """Raised if another process leads than when this conversation began: it knows nothing of the conversation."""


class ClusterClient:
    """One node's connection to its leader. Call its methods only in the event loop's thread."""

    def __init__(
        self,
        address: PeerAddress,
        *,
        job_id: str,
        own_name: str,
        on_order: Callable[[Ordered], None],
        on_lost: Callable[[str], None],
        on_fence: Callable[[float], None] = lambda _: None,
        on_aside: Callable[[str, Aside], None] = cluster_frames.nobody_hears,
        on_elastic: Callable[[ElasticOrdered], None] | None = None,
        tls: Tls | None = None,
        session_store: SessionStore | None = None,
    ) -> None:
        """Creates the client. `on_lost` gets the reason, once, when this node knows of no leader any more.

        `on_fence` gets the time before which that will not happen, each time the leader answers.
        """
        self._address = address
        self._job_id = job_id
        session_store = session_store or SessionStore()
        kept = session_store.kept or JobSessions()
        self._who = Who(job_id, own_name, kept.incarnation or secrets.token_hex(8))
        self._loop = asyncio.get_running_loop()
        self._conversation = Conversation(
            on_message=self._take, on_beat=self._take_answer, keep=session_store.keep, session=kept.letters
        )
        self._link = leader_loss_detection.State(str(address), kept.known_at_s)
        self._said_at_s: float | None = None  # the last that the leader may have heard, while there is no connection
        self._leader_ip = ""  # of the last connection
        self._alarm: asyncio.TimerHandle | None = None  # while there is a connection
        self._on_order = on_order
        self._on_lost = on_lost
        self._on_fence = on_fence
        self._on_aside = on_aside
        self._on_elastic = on_elastic
        self.was_welcomed = kept.term is not None
        self._distrust_s: float | None = None  # since when this node and a leader do not trust each other
        self.is_refused = False  # permanently: looking for the leader again would not help
        self.may_return = False  # the lost leader; see leader_loss_detection.GiveUp
        self.heard_leader: leader_heartbeats.HeardLeader | None = None
        self._is_careful = False  # a connection went silent: large packets may be lost
        self._term = kept.term  # of the leader in this conversation
        self._preamble_key = key_of(token_of(tls))
        self._tls = tls
        self._session: ssl.SSLSession | None = None  # of the last connection
        self._relay_client: RelayClient | None = None  # of the last connection through a relay
        self._may_be_redirected = True  # False: the relay was not reachable
        self._was_put_off = False  # until there are relays
        self._unknown_told = False
        self._tasks: TaskGroup | None = None

    @property
    def known_at_s(self) -> float | None:
        """Returns when we sent the last message that the leader certainly heard; None: it was never reached."""
        return self._link.known_at_s

    @property
    def said_at_s(self) -> float | None:
        """Returns when the leader may last have heard from this node; None: never."""
        return self._said_at_s if self._conversation.line is None else self._loop.time()

    @property
    def term(self) -> int | None:
        """Returns the term of the leader that has welcomed this node; None: none has."""
        return self._term

    def report(self, reported: Reported | ElasticReported) -> None:
        """Sends a report and keeps it until the leader has it."""
        try:
            for payload in cluster_codec.payloads(reported):
                self._conversation.say(payload)
        except (SessionError, FrameTooLongError) as error:
            _log.warning("a report to the leader is lost: %s", error)

    def say_aside(self, aside: Aside) -> bool:
        """Sends it once if there is a connection; it may be lost. Returns False if it certainly does not arrive."""
        return self._conversation.say_aside(cluster_codec.encode(aside))

    def session_state(self) -> JobSessions:
        """Returns what is kept for a supervisor that returns; all of it may go out from now on."""
        session = self._conversation.session_state()
        return JobSessions(
            incarnation=self._who.incarnation, term=self._term, letters=session, known_at_s=self.known_at_s
        )

    def forget(self) -> None:
        """Forgets unheard messages: nobody is left to hear them."""
        self._conversation.end()

    async def until_all_is_heard(self) -> None:
        await self._conversation.until_all_is_heard()

    async def run(self, *, join_timeout_s: float, again: bool = False, ranks_until_s: float = math.inf) -> None:
        """Runs until cancelled, or until the leader is lost or refuses this node.

        `again`, `ranks_until_s`: see leader_loss_detection.Begun.
        """
        async with anyio.create_task_group() as self._tasks:
            try:
                await self._keep_in_touch(leader_loss_detection.Begun(join_timeout_s, again, ranks_until_s))
            except (RefusedError, LeaderChangedError, LinkLostError) as error:
                self.is_refused = isinstance(error, RefusedError)
                self._on_lost(str(error))
            finally:
                self._said_at_s = self.said_at_s
                self._conversation.let_go("the node ends", says_all=True)
            self._tasks.cancel_scope.cancel()

    async def _keep_in_touch(self, begun: leader_loss_detection.Begun) -> None:
        self._decide(begun)
        while True:
            line, said_at_s = await self._find()
            self._decide(leader_loss_detection.LinkUp(said_at_s))
            why = await line.until_ended()
            self._said_at_s = self._loop.time()
            self._note_silence(line)
            # Not after a silence: the leader may not know yet that the relay caused it.
            self._may_be_redirected = self._said_at_s - line.heard_at_s < link_silence.SILENCE_S
            self._decide(leader_loss_detection.LinkLost(why))
            if self._said_at_s - said_at_s < BRIEF_S:
                await pause(AGAIN_S[0], why="the next connection may end the same way at once")

    async def _find(self) -> tuple[Line, float]:
        """Returns a connection and when the Hello was sent. Raises LinkLostError once it is too late for one."""
        attempt = 0
        while True:
            until_s = leader_loss_detection.next_deadline_s(self._link)
            assert until_s is not None, "the leader is not lost yet"
            with anyio.CancelScope(deadline=until_s) as too_late:
                try:
                    return await self._meet(until_s, self._next_host(attempt))
                except TimeoutError:
                    why = f"it does not answer in time{self._hint()}"
                except OSError as error:
                    why = cluster_connect.reason_of(error)
                except (LinkLostError, SessionError, ClusterProtocolError) as error:
                    why = str(error)
                self._decide(leader_loss_detection.NotReached(why, is_gone=why == cluster_connect.REFUSED))
                await pause(AGAIN_S[min(attempt, len(AGAIN_S) - 1)], why="nothing tells when somebody listens there")
                attempt += 1
            if too_late.cancelled_caught:
                self._decide(leader_loss_detection.DeadlineReached())

    def _next_host(self, attempt: int) -> str:
        """Returns the IP address at which the leader was reached: then a slow or dead name server does no harm."""
        return self._leader_ip if self._leader_ip and attempt % 2 == 0 else self._address.host

    async def _meet(self, until_s: float, host: str) -> tuple[Line, float]:
        """Uses half of the remaining time, to leave time for another connection if this one does not answer."""
        pipe = Pipe(self._tls, leads=False, session=self._session) if self._tls is not None else None
        if self._was_put_off:
            self._may_be_redirected = leader_loss_detection.may_wait_for_relay(self._link, anyio.current_time())
        preamble = Preamble(MAY_BE_REDIRECTED if self._may_be_redirected else CONNECTS_HERE, self._preamble_key)
        self._may_be_redirected, self._was_put_off = True, False
        line = Line(pipe=pipe, preamble=preamble)
        is_held = False
        try:
            left_s = max(0.0, until_s - anyio.current_time())
            await self._connect(line, host, self._address.port, min(CONNECT_S, left_s / 2))
            ip = line.address("peername")
            with anyio.fail_after(min(INTRODUCED_S, left_s / 2)):
                is_greeted = await self._is_greeted(line, preamble)
                said_at_s = self._loop.time()
                if is_greeted:
                    await self._introduce(line)
            self._leader_ip = ip
            if not is_greeted:
                assert preamble.redirected_to is not None
                return await self._meet_by_relay(until_s, *preamble.redirected_to)
            self._conversation.hold(line, on_end=lambda _: None)
            is_held = True
            self._session = pipe.session if pipe is not None else None
            return line, said_at_s
        finally:
            if not is_held:
                self._note_silence(line)
                line.end("the node has nothing more to send", says_all=True)

    def _line(self, kind: bytes) -> Line:
        pipe = Pipe(self._tls, leads=False) if self._tls is not None else None
        return Line(pipe=pipe, preamble=Preamble(kind, self._preamble_key))

    def _note_silence(self, line: Line) -> None:
        if self._loop.time() - line.heard_at_s > link_silence.ALIVE_S:
            self._is_careful = True

    async def _connect(self, line: Line, host: str, port: int, limit_s: float) -> None:
        with anyio.fail_after(limit_s):
            await cluster_connect.connect(lambda: line, host, port, is_careful=self._is_careful)

    async def _meet_by_relay(self, until_s: float, host: str, port: int) -> tuple[Line, float]:
        """Connects through a relay, as the leader directed. If that fails, the node asks to connect directly."""
        self._may_be_redirected = False
        self._was_put_off = (host, port) == AGAIN
        if self._was_put_off:
            await pause(PUT_OFF_S * (1 + random.random()), why="nothing tells when there are relays")
            raise LinkLostError("it waits for relays that are to take this node")
        outer = self._line(CONNECTS_HERE)
        is_held = False
        try:
            left_s = max(0.0, until_s - anyio.current_time())
            await self._connect(outer, host, port, min(CONNECT_S, left_s / 2))
            with anyio.fail_after(min(INTRODUCED_S, left_s / 2)):
                first = await outer.receive()
                hello_exchange.check_user(outer, has_secrets=self._tls is not None)
                hello_exchange.check_greeting(first)
                await hello_exchange.introduce(outer, self._who)
                relay_client = RelayClient(outer, on_beat=self._take_answer)
                hello_exchange.check_greeting(await relay_client.line.receive())
                said_at_s = self._loop.time()
                await self._introduce(relay_client.line)
            self._relay_client = relay_client
            self._conversation.hold(relay_client.line, on_end=lambda _: None)
            is_held = self._may_be_redirected = True
            return relay_client.line, said_at_s
        except (hello_exchange.StrangerError, hello_exchange.RefusalError) as error:
            raise LinkLostError(f"the relay at {host} refuses this node: {error}") from error
        finally:
            if not is_held:
                self._note_silence(outer)
                outer.end("the node has nothing more to send", says_all=True)

    async def _is_greeted(self, line: Line, preamble: Preamble) -> bool:
        """Waits for the Greeting, which may take long if thousands of nodes connect. False: the leader redirects us."""
        try:
            first = await line.receive()
        except LinkLostError as error:
            if preamble.redirected_to is not None:
                return False
            if preamble.refusal and not self.was_welcomed:
                raise RefusedError(f"the leader at {self._address} refuses this node: {preamble.refusal}") from error
            if line.distrust:
                why = f"this node and the leader at {self._address} do not trust each other: {line.ended}"
                if await self._may_be_renewed() or self.was_welcomed:
                    raise LinkLostError(why) from error
                raise RefusedError(why) from error
            raise LinkLostError(f"it says nothing: {error}{self._hint()}") from error
        try:
            hello_exchange.check_user(line, has_secrets=self._tls is not None)
        except hello_exchange.OtherUserError as error:
            if self.was_welcomed:
                raise
            raise RefusedError(f"this node does not trust the process at {self._address}: {error}") from error
        try:
            hello_exchange.check_greeting(first)
        except ClusterProtocolError as error:
            raise ClusterProtocolError(f"cannot join: {self._address} is not the leader of a job") from error
        return True

    async def _may_be_renewed(self) -> bool:
        """Reads this node's files again. Returns whether the leader may still be about to read its own."""
        if self._tls is None or self._tls.files is None:
            return False
        await cluster_tls.read_again(self._tls)
        self._distrust_s = self._loop.time() if self._distrust_s is None else self._distrust_s
        return self._loop.time() - self._distrust_s < RENEWED_S

    def _hint(self) -> str:
        if self._tls is not None or self.known_at_s is not None:
            return ""
        return "; if it has a token or certificates, write token_file, or tls_cert, tls_key and tls_ca, in --rdzv-conf"

    def _decide(self, event: leader_loss_detection.Event) -> None:
        """Tells the machine, and does what it wants. Raises LinkLostError if the leader is lost."""
        self._link, actions = leader_loss_detection.step(self._link, event, now_s=self._loop.time())
        for action in actions:
            match action:
                case leader_loss_detection.SendHeartbeat():
                    self._send_heartbeat()
                case leader_loss_detection.EndLink(why):
                    if (line := self._conversation.line) is not None:
                        line.end(why)
                case leader_loss_detection.MoveFence(until_s):
                    self._on_fence(until_s)
                case leader_loss_detection.Say(text):
                    _log.warning("%s", text, extra={"job_id": self._job_id})
                case leader_loss_detection.GiveUp(why, may_return):
                    self.may_return = may_return
                    raise LinkLostError(why)
        self._set_alarm()

    def _set_alarm(self) -> None:
        due_s = leader_loss_detection.next_deadline_s(self._link) if self._link.is_up else None
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due_s, self._ring) if due_s is not None else None

    def _ring(self) -> None:
        line = self._conversation.line
        if line is not None:  # else `run` hears of it soon
            self._decide(leader_loss_detection.DeadlineReached(line.heard_at_s, self._conversation.waits_since_s))

    def _send_heartbeat(self) -> None:
        heartbeat = heartbeats.of_node(self._loop.time())
        if self._relay_client is not None and self._relay_client.line is self._conversation.line:
            self._relay_client.beat(heartbeat)
        else:
            self._conversation.beat(heartbeat)

    def _take_answer(self, heartbeat: bytes) -> None:
        if (sent_at_s := heartbeats.sent_at_s(heartbeat)) is not None:
            self._decide(leader_loss_detection.Answered(sent_at_s))
        elif (leaders := heartbeats.leaders(heartbeat)) is not None:
            self.heard_leader = leader_heartbeats.heard(leaders, self._loop.time())
            self._conversation.beat(heartbeat)

    async def _introduce(self, line: Line) -> None:
        self._said_at_s = self._loop.time()
        try:
            welcome = await hello_exchange.introduce(line, self._who)
        except hello_exchange.StrangerError as error:
            raise RefusedError(
                f"this node and the leader at {self._address} do not trust each other: {error}"
            ) from error
        except hello_exchange.RefusalError as error:
            raise RefusedError(f"the leader at {self._address} refuses this node: {error}") from error
        except ClusterProtocolError as error:
            raise ClusterProtocolError(f"cannot join: {self._address}: {error}") from error
        if self._term not in (None, welcome.term) and welcome.term != hello_exchange.TERM_BEFORE:
            raise LeaderChangedError(f"the leader at {self._address} is lost: another process leads there now")
        if not cluster_versions.is_spoken(welcome.protocol_version):
            version = welcome.protocol_version
            raise RefusedError(f"the leader at {self._address} speaks version {version} of the protocol")
        self.was_welcomed, self._term = True, welcome.term
        self._preamble_key = welcome.door_key or self._preamble_key

    async def _serve_relay(self) -> None:
        """Serves as a relay, as the leader wants. If it can't be reached, other nodes find another way."""
        held = self._conversation.line
        own_ip = held.address("sockname") if held is not None else ""
        if held is None or not own_ip:
            return  # The connection has just ended; the leader asks again by the next one.
        relay = OwnRelay(self._who, tls=self._tls, preamble_key=self._preamble_key)
        host, port = held.address("peername"), self._address.port
        await relay.serve(self._line(IS_RELAY), own_ip, lambda line: self._connect(line, host, port, CONNECT_S))

    def _tell_unknown(self) -> None:
        if not self._unknown_told:
            self._unknown_told = True
            why = "skipped a message of the leader, which is newer; install the same version on all nodes"
            _log.warning("job %s: %s", self._job_id, why)

    def _take(self, payload: bytes) -> None:
        if not leader_loss_detection.is_obeyed(self._link, self._loop.time()):
            raise ClusterProtocolError("it was heard too late: this node was stalled")
        match cluster_codec.decode(payload):
            case Ordered(job_id) as ordered if job_id == self._job_id:
                self._on_order(ordered)
            case ElasticOrdered() as ordered if self._on_elastic is not None:
                self._on_elastic(ordered)
            case Asked() | Answered() as aside if aside.job_id == self._job_id:
                self._on_aside("", aside)
            case ServeRelay() if self._tasks is not None:
                self._tasks.start_soon(self._serve_relay)
            case Unknown():
                self._tell_unknown()
            case other:
                raise ClusterProtocolError(f"cannot take {type(other).__name__} from the leader")
