"""How do wrapped calls of many ranks on many nodes go under all possible faults? One heap of (time, what) runs it.

The production machines (one local_call for each node, one iteration machine) run between simulated ranks, which fail,
hang, leave, die, disconnect and return; supervisors may forget everything. `complaints` gets what must never happen.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

from supervisor.core.cluster import wrapped_call
from supervisor.core.cluster.cluster_messages import CallReport, DeadlineReached
from supervisor.core.node import local_call
from supervisor.core.node.node_messages import Accepted, RankSaid, TellCoordinator, TellRanks
from supervisor.core.orders import SettleCall, TellMembers
from supervisor.core.wrapped_calls import call_actions
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallLeave,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    ExchangeValue,
    FaultsReported,
    FromRank,
    Interrupt,
    Interruption,
    IterationBegan,
    Leaving,
    RankFault,
    RanksMissing,
    Restart,
    Stage,
    ToRank,
)
from tests.core.call_checks import CallChecks, is_excused_refusal
from tests.core.simulated_node_loss import NodeLosses
from tests.core.simulated_rank import Odds, SimulatedRank

SETTINGS = CallSettings(last_call_wait_s=1.0, barrier_timeout_s=60.0, heartbeat_timeout_s=5.0)
END_S = 5000.0
ITERATIONS_MAX = 60


class SimulatedCall:
    """`run` plays until nothing happens any more."""

    def __init__(self, seed: int, *, nodes: int, per_node: int, odds: Odds, units: int = 0, calls: int = 2) -> None:
        self.random = random.Random(seed)
        self.odds = odds
        self.world_size = nodes * per_node
        self.per_node = per_node
        self.units = units
        self.calls = calls
        self.active_max = self.random.choice([self.world_size, max(1, self.world_size - 1)])
        self.active_max = self.world_size if odds.discarded else self.active_max  # the last active rank must stay
        self.exchanges = self.random.random() < 0.5
        self.now_s = 0.0
        self.machine = wrapped_call.initial_state(self.world_size)
        self.nodes = [local_call.initial_state() for _ in range(nodes)]
        self.ranks = [SimulatedRank(member, self.world_size) for member in range(self.world_size)]
        self.checks = CallChecks(bool(odds.forgets) or odds.forgets_decision)
        self.forgotten_decision = self.random.randrange(4) if odds.forgets_decision else -1
        self.complaints = self.checks.complaints
        self.ends: list[call_actions.EndCall] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = self._connections = 0
        self.up: list[deque[CallReport]] = [deque() for _ in range(nodes)]
        self.losses = NodeLosses(self)

    # --- time

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, what))

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def run(self) -> SimulatedCall:
        for number in range(len(self.nodes)):
            self.tell_node(number, local_call.CycleBegun(number * self.per_node, self.per_node, self.world_size))
        for rank in self.ranks:
            rank.delay_s = self.random.uniform(0.0005, 0.0015)
            self.after(self.random.uniform(0, 1), lambda rank=rank: self._enter(rank, 1))
        if self.chance(self.odds.forgets):
            self.after(self.random.uniform(1, 20), self._forget_everything)
        self.losses.plan()
        while True:
            there = [node for number, node in enumerate(self.nodes) if number not in self.losses.lost]
            timers = [wrapped_call.next_deadline_s(self.machine), *map(local_call.next_deadline_s, there)]
            deadline_s = min((each for each in timers if each is not None), default=None)
            if deadline_s is not None and (not self._heap or deadline_s <= self._heap[0][0]):
                self.now_s = max(self.now_s, deadline_s)
                self.tell_machine(DeadlineReached())
                for number in range(len(self.nodes)):
                    self.tell_node(number, local_call.DeadlineReached())
            elif self._heap:
                self.now_s, _, what = heapq.heappop(self._heap)
                what()
            else:
                break
            if self.now_s > END_S or self.machine.iteration > ITERATIONS_MAX:
                self.complaints.append(f"no end at {self.now_s:.0f} s in iteration {self.machine.iteration}")
                break
        self.checks.note_end(self.ranks, self.machine)
        return self

    # --- machines

    def tell_node(self, number: int, event: local_call.Event) -> None:
        if number in self.losses.lost:
            return
        self.nodes[number], actions = local_call.step(
            self.nodes[number], event, now_s=self.now_s, job_id="j", cycle=0, node=f"node{number}"
        )
        for action in actions:
            match action:
                case TellCoordinator(_, report):
                    assert isinstance(report, CallReport)
                    self.up[number].append(report)
                    self.after(self.random.uniform(0, 0.01), lambda: self._deliver_up(number))
                case TellRanks(_, _, local_ranks, order):
                    assert not isinstance(order, Accepted)
                    for local_rank in local_ranks:
                        self._tell_rank(self.ranks[number * self.per_node + local_rank], order)
                case local_call.CondemnRank(local_rank):
                    rank = self.ranks[number * self.per_node + local_rank]
                    self.after(0.5, lambda rank=rank: self._die(rank))
                case local_call.WatchRank() | local_call.UnwatchRank() | local_call.SettleExcuses():
                    pass

    def _deliver_up(self, number: int) -> None:
        if self.up[number]:
            self.tell_machine(self.up[number].popleft())  # in order, whatever delay was drawn

    def tell_machine(self, event: wrapped_call.Event) -> None:
        self.machine, actions = wrapped_call.step(self.machine, event, now_s=self.now_s, units_left=self.units)
        for action in actions:
            match action:
                case call_actions.Tell(members, order):
                    self.checks.note_order(order, self.machine)
                    if isinstance(order, BeginIteration | Entered) and order.iteration == self.forgotten_decision:
                        self.forgotten_decision = -1
                        soon_s = self.random.choice([0.002, 0.02])  # before or while the ranks exchange values
                        self.after(self.random.uniform(0, soon_s), self._forget_everything)
                    for number in range(len(self.nodes)):
                        self.tell_node(number, TellMembers(0, members, order))
                case call_actions.Replace(lost, takes_unit):
                    self.units -= takes_unit
                    if self.units < 0:
                        self.complaints.append("more units were taken than there were")
                    self.losses.fill({member // self.per_node for _, member in lost})
                    for _, member in lost:
                        self.after(self.random.uniform(0, 0.2), lambda member=member: self._respawn(member))
                case call_actions.EndCall(call, stands, reason):
                    self.ends.append(action)
                    for number in range(len(self.nodes)):
                        self.tell_node(number, SettleCall(0, call, stands, reason))
                case call_actions.Say(kind, _, at):
                    self.checks.note_event(kind, at, self.machine, now_s=self.now_s)

    def _forget_everything(self) -> None:
        """Replaces all supervisors by new ones; all connections are lost. The ledger names the nodes given up."""
        self.machine = wrapped_call.initial_state(self.world_size, lost=self.losses.given_up())
        for queue in self.up:
            queue.clear()
        for number in range(len(self.nodes)):
            self.nodes[number] = local_call.initial_state()
            self.tell_node(number, local_call.CycleBegun(number * self.per_node, self.per_node, self.world_size))
        for rank in self.ranks:
            if rank.alive:
                rank.connection = 0
                away_s = 20.0 if self.chance(self.odds.silent) else self.random.uniform(0, 2)
                self.after(away_s, lambda rank=rank: self._reconnect(rank))
            else:
                self._node_of(rank, local_call.RankEnded(self._local(rank), "killed", failed=True))

    # --- connections

    def _local(self, rank: SimulatedRank) -> int:
        return rank.member % self.per_node

    def _node_of(self, rank: SimulatedRank, event: local_call.Event) -> None:
        if self.ranks[rank.member] is rank:
            self.tell_node(rank.member // self.per_node, event)

    def _tell_rank(self, rank: SimulatedRank, order: ToRank) -> None:
        connection = rank.connection
        if connection:
            self.after(
                rank.delay_s, lambda: self._hear(rank, order) if rank.connection == connection and rank.alive else None
            )

    def say(self, rank: SimulatedRank, word: FromRank) -> None:
        connection = rank.connection
        if connection:

            def arrive() -> None:
                if rank.connection == connection:
                    self._node_of(rank, RankSaid("j", 0, self._local(rank), word))

            self.after(0.001, arrive)

    def _disconnect(self, rank: SimulatedRank) -> None:
        if rank.alive and rank.connection:
            rank.connection, rank.waits_for_decision, rank.was_away = 0, False, True
            self._node_of(rank, local_call.ClientLeft(self._local(rank)))
            self.after(self.random.choice([0.01, 0.3, 1.5, 20.0]), lambda: self._reconnect(rank))

    def _connect(self, rank: SimulatedRank) -> None:
        self._connections += 1
        rank.connection = self._connections
        self._node_of(rank, local_call.ClientJoined(self._local(rank)))

    def _reconnect(self, rank: SimulatedRank) -> None:
        if not rank.alive or rank.connection:
            return
        self._connect(rank)
        if rank.farewell is not None:
            self.say(rank, rank.farewell)  # the message may not have arrived
        elif rank.stage is not None and not rank.out:
            self.say(rank, rank.entry(SETTINGS))
        if rank.stage is Stage.ENTERING and rank.is_late:
            rank.is_late = False
            self.after(SETTINGS.barrier_timeout_s, lambda: self._give_up_entering(rank, rank.call))
        if rank.given is not None and rank.stage is not None and not rank.out:
            self.say(rank, rank.given)

    # --- what a rank does

    def _enter(self, rank: SimulatedRank, call: int) -> None:
        if not rank.alive or rank.out:
            return
        if not rank.connection:
            self._connect(rank)
        rank.call, rank.iteration, rank.stage = call, 0, Stage.ENTERING
        rank.rank, rank.size, rank.is_restarting, rank.is_late = rank.member, self.world_size, False, False
        rank.plan, rank.given, rank.early = None, None, []
        self.say(rank, rank.entry(SETTINGS))
        self._plan_trouble(rank)
        self.after(SETTINGS.barrier_timeout_s, lambda: self._give_up_entering(rank, call))

    def _give_up_entering(self, rank: SimulatedRank, call: int) -> None:
        """Gives up entering: BarrierTimeout at the initial barrier."""
        if rank.stage is Stage.ENTERING and rank.call == call and not rank.is_late:
            self._leave(rank, Leaving.FAULT)

    def _plan_trouble(self, rank: SimulatedRank) -> None:
        """Plans trouble at any later moment."""
        when_s = self.random.choice([0.0005, 0.002, 0.005, 0.5, 3.0]) * self.random.uniform(0.5, 2)
        if self.chance(self.odds.dies):
            self.after(when_s, lambda: self._die(rank))
        elif self.chance(self.odds.leaves):
            self.after(when_s, lambda: self._leave(rank, Leaving.FAULT))
        if self.chance(self.odds.disconnects):
            self.after(when_s * self.random.uniform(0.2, 2), lambda: self._disconnect(rank))

    def _follow(self, rank: SimulatedRank, plan: Entered | BeginIteration) -> None:
        """Follows what was decided last. A coordinator that decides the same again knows no values."""
        if not rank.follows(plan):
            self._assign(rank, plan)
        elif rank.given is not None:
            self.say(rank, rank.given)

    def _assign(self, rank: SimulatedRank, plan: Entered | BeginIteration) -> None:
        """Assigns ranks by a decision. If values are exchanged for that, the iteration begins when all are there."""
        if not rank.assign(plan):
            self.complaints.append(f"rank {rank.member} lives and is told that it does not: {plan}")
        if self.chance(self.odds.discarded):
            self._leave(rank, Leaving.DISCARDED)
        elif self.exchanges:
            rank.given = ExchangeValue(rank.call, rank.number, "tree/1", rank.next_rank, f"of {rank.member}")
            self.say(rank, rank.given)
            self.after(SETTINGS.barrier_timeout_s, lambda: self._note_overdue(rank, plan))
        else:
            self._begin(rank)

    def _note_overdue(self, rank: SimulatedRank, plan: Entered | BeginIteration) -> None:
        if rank.plan is plan and rank.alive and not rank.out:
            self.complaints.append(f"rank {rank.member} has waited too long for the others' values after {plan}")

    def _begin(self, rank: SimulatedRank) -> None:
        self.checks.note_followed(rank)
        rank.begin()
        position = (rank.call, rank.iteration)
        rank.active = rank.rank < self.active_max
        active = min(rank.size, self.active_max)
        self.checks.note_began(rank, active)
        self.say(rank, IterationBegan(*position, rank.rank, rank.size, rank.rank if rank.active else None, active))
        if self.chance(self.odds.fails) and rank.active:
            self.after(self.random.uniform(0, 2), lambda: self._fail(rank, position))
        elif self.chance(self.odds.hangs):
            self.after(self.random.uniform(2, 6), lambda: self._is_found_hanging(rank, position))
        elif rank.active:
            self.after(self.random.uniform(0, 3), lambda: self._return(rank, position))
        self._plan_trouble(rank)
        early, rank.early = rank.early, []
        for order in early:
            self._hear(rank, order)

    def _fail(self, rank: SimulatedRank, position: tuple[int, int]) -> None:
        if self._is_at(rank, position, Stage.RUNNING):
            rank.stage = Stage.UNWINDING
            self.say(rank, RankFault(*position, rank.rank, Interruption.EXCEPTION, "ValueError: bad loss"))

    def _return(self, rank: SimulatedRank, position: tuple[int, int]) -> None:
        if self._is_at(rank, position, Stage.RUNNING):
            rank.stage = Stage.COMPLETING
            self.say(rank, BarrierArrive(*position, Barrier.COMPLETION, rank.rank, rank.active))

    def _is_found_hanging(self, rank: SimulatedRank, position: tuple[int, int]) -> None:
        if not self._is_at(rank, position, Stage.RUNNING):
            return
        text = "executed no Python code for 60.0 s"
        self._node_of(rank, local_call.RankFaulted(self._local(rank), Interruption.SOFT_TIMEOUT, text))
        rank.connection = 0 if self.chance(0.2) else rank.connection
        self.after(3.0, lambda: self._die(rank))

    def _is_at(self, rank: SimulatedRank, position: tuple[int, int], stage: Stage) -> bool:
        return rank.alive and not rank.out and (rank.call, rank.iteration) == position and rank.stage is stage

    def _leave(self, rank: SimulatedRank, why: Leaving) -> None:
        if not rank.alive or rank.out or rank.stage is None:
            return
        if not rank.connection:
            self._connect(rank)
            self.say(rank, rank.entry(SETTINGS))
        # The rank waits for the others' fate, but not if it loses its connection meanwhile.
        rank.waits_for_decision = why is Leaving.FAULT and rank.stage is not Stage.ENTERING and not self.checks.forgets
        rank.out = f"left: {why!r}"
        unfit = why is Leaving.FAULT and self.chance(self.odds.unfit)
        rank.farewell = CallLeave(rank.call, rank.iteration, why, "SystemExit: 1", unfit)
        self.say(rank, rank.farewell)
        stays_s = self.random.uniform(0, self.random.choice([0.05, 3.0, 10.0]) if unfit else 100)
        self.after(stays_s, lambda: self._die(rank, failed=not self.chance(self.odds.ends_well)))

    def _die(self, rank: SimulatedRank, *, failed: bool = True) -> None:
        if not rank.alive:
            return
        rank.alive, rank.connection, rank.waits_for_decision = False, 0, False
        if self.chance(0.5):
            self._node_of(rank, local_call.ClientLeft(self._local(rank)))
        ended = local_call.RankEnded(self._local(rank), "has ended", failed=failed)
        self.after(self.random.uniform(0, 0.02), lambda: self._node_of(rank, ended))

    def _respawn(self, member: int) -> None:
        if member // self.per_node in self.losses.lost:
            return  # the node was lost before the process began
        self.checks.note_respawn(self.ranks[member])
        self.ranks[member] = rank = SimulatedRank(member, self.world_size, stands_in=True)
        self._node_of(rank, local_call.RankStarted(self._local(rank)))
        if self.chance(self.odds.spawn_fails):
            self._die(rank)  # the rank does not enter
        late_s = self.random.uniform(8, 19) * self.chance(self.odds.late)
        self.after(self.random.uniform(0, 1) + late_s, lambda: self._enter(rank, 1))

    # --- orders to a rank

    def _hear(self, rank: SimulatedRank, order: ToRank) -> None:  # noqa: C901 - one case for each order
        if isinstance(order, BeginIteration | CallRefused) and order.call == rank.call:
            rank.waits_for_decision = False
        if rank.out or order.call != rank.call or rank.stage is None:
            return
        match order:
            case CallUnderway():
                rank.is_late = True
            case RanksMissing():
                self.complaints.append(f"rank {rank.member} has not asked who is missing, and is told")
            case Entered(_, at, history):
                if rank.stage is not Stage.ENTERING:
                    return
                self._follow(rank, order)
                if rank.number != at:
                    self.complaints.append(f"rank {rank.member} enters iteration {at} with history {history}")
            case Interrupt(_, at):
                if rank.plan is not None or at == rank.iteration:
                    self.say(rank, FaultsReported(rank.call, at))
            case Restart(_, at) | CallCompleted(_, at) if rank.assigns(at):
                rank.early.append(order)
            case Restart(_, at, records):
                if at != rank.iteration or rank.stage is Stage.RESTARTING or rank.is_restarting:
                    return
                if not records:
                    self.complaints.append("a restart without a reason")
                rank.stage, rank.is_restarting = Stage.UNWINDING, True
                self.after(self.random.uniform(0, 0.5), lambda: self._arrive(rank, (rank.call, at)))
            case BeginIteration():
                if rank.stage is Stage.RESTARTING and order.iteration > rank.iteration:
                    self._follow(rank, order)
            case CallCompleted(_, at):
                if at == rank.iteration and rank.stage is Stage.RUNNING and not rank.active:
                    self._return(rank, (rank.call, at))
            case Committed(_, at):
                has_arrived = rank.stage is Stage.COMPLETING and at == rank.iteration
                if not (has_arrived or (rank.stage is Stage.ENTERING and rank.stands_in)):
                    self.complaints.append(f"rank {rank.member} has not arrived, and is told that all have")
                self.say(rank, CallLeave(rank.call, at, Leaving.DONE, ""))
                rank.stage = None
                if rank.call < self.calls:
                    self.after(self.random.uniform(0, 1), lambda: self._enter(rank, rank.call + 1))
            case CallRefused(_, reason):
                rank.out = reason
                if rank.stands_in and not rank.was_away and not self.checks.forgets and "gone on without" in reason:
                    self.complaints.append(f"the new process of rank {rank.member} was refused: {reason}")
                self.checks.note_refused(rank, reason, may_be_silent=self.odds.silent > 0)
                if not self.checks.forgets and not is_excused_refusal(reason):
                    self.complaints.append(f"rank {rank.member} was refused: {reason}")
                self.after(1.0, lambda: self._die(rank))
            case Exchanged():
                if rank.plan is not None and order.iteration == rank.number:
                    self._begin(rank)

    def _arrive(self, rank: SimulatedRank, position: tuple[int, int]) -> None:
        if rank.alive and not rank.out and (rank.call, rank.iteration) == position and rank.is_restarting:
            rank.stage = Stage.RESTARTING
            self.say(rank, BarrierArrive(*position, Barrier.ITERATION, rank.rank, rank.active))
