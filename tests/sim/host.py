"""One supervisor process of a simulated job: its node's production machines, its clock, its timer and its link.

One of them leads and runs the job's coordinator, too; without an election (voting.py) that is the first one. A process
may be stopped for a while, as by SIGSTOP; received messages then wait, and are handled before deadlines are checked
(engine/engine_loop.py).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import coordinator, job_termination, leader_takeover
from supervisor.core.election import follower
from supervisor.core.facts import Verdict
from supervisor.core.fence_times import FENCE_S
from supervisor.core.node import node, node_messages
from supervisor.core.stop_verdict import has_left
from supervisor.edges.peers.embedded.cluster_peers import PARTING_S
from supervisor.edges.peers.stream.cluster_client import SPAWNER_LATER_S
from supervisor.programs.simulation.simulated_timeline import Alarm, What
from tests.sim import striking
from tests.sim.faults import FOREVER_S
from tests.sim.following import ALL_IS_WELL, Client
from tests.sim.network import Reach
from tests.sim.processes import OF_PROCESSES, Processes
from tests.sim.relaying import RelayDownstream
from tests.sim.serving import Server
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.voting import Voter
    from tests.sim.world import World

PARTING_LOOK_S = 0.25
EARLY_TIMERS = 0.05  # share of events after which the timer fires although nothing is due


class Host:
    """A process, not a machine: after a crash, its successor is another host of the same name."""

    def __init__(self, world: World, name: str, clock: tuple[float, float]) -> None:
        self.world = world
        self._timeline = world.timeline
        self.name = name
        self.state = node.initial_state(name)
        self.coordinator: coordinator.State | None = None
        self.processes = Processes(self)
        self.is_dead = False
        self.verdict: Verdict | None = None
        self.run_number = 0  # of the job, in which it takes part
        self.history = 0  # of that run; see histories.py
        self.first_run: int | None = None  # that of the first leader it met
        self.newest_era = 0  # of the backend's data: that of the leaders it met
        self._follower = follower.State()  # if the leader is not elected
        self.iteration_unreadable_until_s = 0.0
        self.reach = Reach()
        self.links: dict[Client | RelayDownstream, None] = {}  # those with this process at one end
        self.client: Client | None = None  # of the leader, if it is not elected
        self.voter: Voter | None = None  # if it is elected
        self.server: Server | None = None  # if it leads, and is not elected
        self.paused_until_s = 0.0
        self._pauses: list[tuple[float, float]] = []  # (from, to)
        self._offset_s, self._rate = clock
        self._clock_s = 0.0
        self._inbox: deque[What] = deque()
        self._is_busy = False
        self._reported_at_s = 0.0
        self._alarm = Alarm(world.timeline, self._deadline_s, self._ring)

    # --- time

    @property
    def is_paused(self) -> bool:
        return self.world.timeline.now_s < self.paused_until_s

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.is_paused

    @property
    def has_deadline(self) -> bool:
        return self._alarm.is_armed or (self.client is not None and self.client.seeks)

    def local_s(self, at_s: float) -> float:
        return self._offset_s + at_s * self._rate

    def ran_s(self, since_s: float) -> tuple[float, int]:
        """Returns for how long it has run since then, and how often it was stopped."""
        now_s = self.world.timeline.now_s
        stops = [(max(from_s, since_s), min(to_s, now_s)) for from_s, to_s in self._pauses]
        stops = [(from_s, to_s) for from_s, to_s in stops if from_s < to_s]
        return now_s - since_s - sum(to_s - from_s for from_s, to_s in stops), len(stops)

    def after_s(self, delay_s: float) -> float:
        """Returns the moment when its clock will have advanced by this much."""
        return self.world.timeline.now_s + delay_s / self._rate

    def moment_s(self, local_s: float) -> float:
        return (local_s - self._offset_s) / self._rate

    def ring_at(self, local_s: float, what: What) -> None:
        """Lets `what` happen once its clock shows this."""

        def ring() -> None:
            self._clock_s = max(self._clock_s, local_s)  # corrects rounding between the clocks
            what()

        self._timeline.at(self.moment_s(local_s), lambda: self.receive(ring))

    def now_s(self) -> float:
        local_s = self._offset_s + self._timeline.now_s * self._rate
        if local_s > self._clock_s:
            self._clock_s = local_s
        return self._clock_s

    def _local_deadline_s(self) -> float | None:
        deadline_s = node.next_deadline_s(self.state)
        if self.coordinator is not None:
            of_job_s = coordinator.next_deadline_s(self.coordinator)
            if deadline_s is None or (of_job_s is not None and of_job_s < deadline_s):
                return of_job_s
        return deadline_s

    def _deadline_s(self) -> float | None:
        deadline_s = None if self.is_dead else self._local_deadline_s()
        if deadline_s is None:
            return None
        at_s = (deadline_s - self._offset_s) / self._rate
        return at_s if at_s > self.paused_until_s else self.paused_until_s

    def _ring(self) -> None:
        deadline_s = self._local_deadline_s()
        assert deadline_s is not None
        self._clock_s = max(self._clock_s, deadline_s)  # corrects rounding between the clocks
        self._inbox.append(partial(self._step, node_messages.DeadlineReached()))
        if self.coordinator is not None:
            self._inbox.append(partial(self.coordinate, cluster.DeadlineReached()))
        self._drain()
        next_s = self._local_deadline_s()
        if next_s is not None and next_s <= deadline_s and not self._inbox and not self.is_dead:
            self.world.complain("timer", f"a deadline of {self.name} is still there after it was handled")

    def pause(self, until_s: float) -> None:
        """Stops the process. Work that it ordered before continues."""
        if not self.is_dead:
            from_s = max(self.paused_until_s, self.world.timeline.now_s)
            self._pauses.append((from_s, max(from_s, until_s)))
            self.paused_until_s = max(self.paused_until_s, until_s)
            self.world.timeline.at(until_s, self._go_on)

    def _go_on(self) -> None:
        if self.is_running:
            self._drain()

    def receive(self, what: What) -> None:
        """Receives an event from the network, or from the node's own processes."""
        if self.is_dead:
            return
        self._inbox.append(what)
        if not self._is_busy and self._timeline.now_s >= self.paused_until_s:
            self._drain()

    def _drain(self) -> None:
        """Handles consequences of an event after all its actions, as engine/engine_loop.py does."""
        self._is_busy = True
        inbox, now_s = self._inbox, self._timeline.now_s
        while inbox and now_s >= self.paused_until_s:  # a dead one has an empty inbox
            inbox.popleft()()
        self._is_busy = False
        self._alarm.reset()

    def die(self) -> None:
        self.is_dead = True
        self._inbox.clear()

    # --- the node

    def take(self, event: node_messages.Event) -> None:
        self.receive(partial(self._step, event))

    def _step(self, event: node_messages.Event) -> None:
        if self.is_dead:
            return
        self.state, actions = node.step(self.state, event, now_s=self.now_s())
        for action in actions:
            if isinstance(action, node_messages.Publish):
                self.world.note_event(self, action.event)
            else:
                self._perform(action)
        if self.world.setup.checks_early_timers and self.world.chance(EARLY_TIMERS):
            self._ring_early()

    def _ring_early(self) -> None:
        deadline_s = node.next_deadline_s(self.state)
        if deadline_s is None or deadline_s > self.now_s():
            after, actions = node.step(self.state, node_messages.DeadlineReached(), now_s=self.now_s())
            if actions or after != self.state:
                self.world.complain("early timer", f"an early deadline changed something on {self.name}")

    def _perform(self, action: node_messages.Action) -> None:
        if type(action) in OF_PROCESSES:
            self.processes.perform(action)
            return
        match action:
            case node_messages.TellCoordinator(report=report):
                self._report(report)
            case node_messages.FinishJob(verdict=verdict):
                self.verdict = verdict
                self.world.note_verdict(self, verdict)
                for link in list(self.links):
                    if isinstance(link, Client) and link.node is self:
                        link.carry_no_more()
                if self.voter is not None and self.voter.leader_term is not None and has_left(verdict):
                    self.world.timeline.after(0.0, self._end_with_its_lead)
                elif self.client is not None:
                    self._part(self.after_s(PARTING_S))
                elif self.voter is not None:
                    self.voter.end_if_all_is_over()
            case node_messages.ForkAhead():
                pass
            case _:
                raise AssertionError(action)

    def _end_with_its_lead(self) -> None:
        """Ends the process of a leader that has left its job because nothing answered it; nobody is told."""
        striking.crash(self.world, self, comes_back_after_s=FOREVER_S)

    def _part(self, until_s: float) -> None:
        """Ends the connection to a leader that is not elected once all is heard."""
        client, now_s = self.client, self.world.timeline.now_s
        if client is None or client.is_over:
            return
        if client.up.waiting and now_s < until_s:
            self.world.timeline.after(PARTING_LOOK_S, lambda: self.receive(partial(self._part, until_s)))
        else:
            client.hang_up()

    # --- towards the leader

    def _report(self, report: cluster.Event) -> None:
        """Sends a report. Starts and faults wait for the iteration; none overtakes another (report_queue.py)."""
        takes_s = self.world.setup.iteration_s
        if takes_s is not None and isinstance(report, cluster.JobOpened | cluster.NodeFailed):
            now_s = self.world.timeline.now_s
            is_readable = now_s >= self.iteration_unreadable_until_s
            report = msgspec.structs.replace(report, training_iteration=int(now_s) if is_readable else None)
            self._reported_at_s = max(self._reported_at_s, now_s + takes_s)
        if self._reported_at_s > self.world.timeline.now_s:
            self.world.timeline.at(self._reported_at_s, lambda: self.receive(lambda: self._leave(report)))
        else:
            self._leave(report)

    def _leave(self, report: cluster.Event) -> None:
        if self.voter is not None:
            self.voter.report(report)
        elif self.client is None:
            self.world.timeline.after(0.0, partial(self.receive, partial(self.coordinate, report)))
        else:
            self._as_follower(self.client, follower.Said(report))

    def follow(self, leader: Host) -> Client:
        """Follows this leader permanently; see cluster_peers.FollowerPeers."""
        assert leader.server is not None
        self.client = Client(self, leader.server, on_lost=self._lose_leader, on_fence=self.move_fence)
        return self.client

    def move_fence(self, until_s: float) -> None:
        """Moves the fence to this moment on its own clock; ALL_IS_WELL: it moves continuously."""
        until_s = until_s + SPAWNER_LATER_S if until_s < ALL_IS_WELL else until_s
        self.processes.had_fence(until_s)
        self.take(node_messages.FenceMoved(JOB, until_s))

    def _lose_leader(self, why: str, is_refused: bool) -> None:
        del is_refused
        assert self.client is not None
        self._as_follower(self.client, follower.LeaderLost(why, self.client.may_return))

    def _seek(self, lost: Client) -> None:
        """Looks for the leader again, as another process of this node."""
        join_timeout_s = self.world.setup.rules.rendezvous.join_timeout_s
        client = self.world.clients[self.name] = self.follow(lost.server.leader)
        self.move_fence(self.now_s() + join_timeout_s + FENCE_S)
        self.receive(lambda: client.begin(join_timeout_s, again=True))

    @property
    def lost_leader(self) -> str:
        """Returns why it has given up; "": it has not."""
        return self.voter.over if self.voter is not None else self._follower.lost

    def _as_follower(self, client: Client, event: follower.Event) -> None:
        self._follower, actions = follower.step(self._follower, event, now_s=self.now_s())
        for action in actions:
            match action:
                case follower.Report(report):
                    client.report(partial(client.server.leader.coordinate, report))
                case follower.Obey(order):
                    self.take(node_messages.Ordered(JOB, order))
                case follower.Seek():
                    self._seek(client)

    # --- what the leader does

    def lead(self, taken: cluster.LeadershipTaken | None = None) -> None:
        """Leads the job. `taken` None: nobody has led before, or will after."""
        if taken is None:
            self.coordinator = coordinator.initial_state(JOB)
            self.server = Server(self, on_report=lambda report: self.receive(partial(self.coordinate, report)))
            self.server.begin()
        else:
            self.coordinator = leader_takeover.initial_state(JOB, taken, leader=self.name, now_s=self.now_s())

    def lead_no_more(self) -> None:
        self.coordinator = None

    @property
    def is_led_to_its_end(self) -> bool:
        return self.coordinator is None or job_termination.is_over(self.coordinator)

    def coordinate(self, report: cluster.Event) -> None:
        if self.coordinator is None or self.is_dead:
            return
        jitter = self.world.random.random()
        self.coordinator, actions = coordinator.step(self.coordinator, report, now_s=self.now_s(), jitter=jitter)
        for action in actions:
            match action:
                case cluster.Send(name, order):
                    self._send(name, node_messages.Ordered(JOB, order))
                case cluster.Publish(event=event):
                    self.world.note_decision(self.coordinator, event)
                case cluster.Record(ledger):
                    assert self.voter is not None
                    self.voter.record(ledger)
                case _:
                    pass  # Nobody follows the job here.
        if self.voter is not None:
            self.voter.end_if_all_is_over()

    def _send(self, name: str, ordered: node_messages.Ordered) -> None:
        if self.voter is not None:
            self.voter.send(name, ordered)
            return
        self.world.note_order(self, 0, name, ordered.order)
        if name == self.name:
            self.world.timeline.after(0.0, partial(self.take, ordered))
        elif self.server is not None:
            self.server.send(name, ordered)
