"""What must hold in every simulated run, whatever goes wrong? One small class for each promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.coordinator_states import Ended, Running
from supervisor.core.election.link_silence import LATE_S, SILENCE_S
from supervisor.core.election.node_loss_detection import CHECK_S
from supervisor.core.facts import JobEvent, JobState, RestartPolicyName, Verdict
from supervisor.core.node import node_messages
from supervisor.core.orders import Conclude, Order, StartCycle
from supervisor.core.stop_verdict import has_left
from tests.sim.checker import Checker, Cycle, cycle_of
from tests.sim.exclusivity import Exclusivity
from tests.sim.faults import CUTS, DATA_LOST, DEPARTURES, REQUESTS, Fault, Kind
from tests.sim.setup import DRIFT_MAX, HEARTBEAT_S, LIMIT_S
from tests.sim.striking import DEFECT

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.processes import Rank
    from tests.sim.world import World

_OF_LEADER = frozenset({
    Kind.SUPERVISOR_PAUSE, Kind.NODE_PAUSE, Kind.BACKEND_LOST, Kind.BACKEND_CUT, Kind.NODE_CRASH,
    Kind.BACKEND_WIPED_UNSEEN,
})  # fmt: skip
_STOPS = frozenset({Kind.STOP, Kind.STOP_BY_SIGNAL, Kind.NODE_ENDS, Kind.NODE_LEAVES})
_LEAVING = DEPARTURES | {Kind.EXCLUDE}
# Verdicts of nodes that can't know how the job continues elsewhere, or that it has ended.
ELSEWHERE = ("the job may still run on the nodes that it had", "the job has ended, or still runs on other nodes")
UNLED = "no leader of the job has answered"  # of a node that was asked to end and knows of no others (decision 37)
UNANSWERED = "no leader has answered it"  # of a node that has left by itself (the same)
UNDER_WAY_S = 3.0  # events planned sooner than that may be answers
WRITTEN_S = 3.0
LOST_S = 5.0  # a leader waits for a node for as long as it says (docs)
ROUNDING_S = 1e-6
WRITTEN_AGAIN_S = 12.0  # after the data is lost: another leader may be elected, and take over
ALL_HAVE_JOINED_S = 10.0  # else the lost node may be the only one that the ledger names


class OneLeader(Checker):
    """No order is sent twice for one term, or after a later leader's; cycles only increase, under any leader."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._term = 0, 0
        self._leaders: dict[int, Host] = {}
        self._cycle = 0, 0, -1

    def order(self, leader: Host, term: int, name: str, order: Order) -> None:
        if self._leaders.setdefault(term, leader) is not leader:
            self.complain(f"{leader.name} and {self._leaders[term].name} both lead in term {term}")
        own = self.world.era_of_term.get(term, 0), term  # a backend without its data begins with its first terms
        if own < self._term:
            self.complain(f"{leader.name} gives {name} an order in term {term}, after the one of term {self._term}")
        self._term = max(self._term, own)

    def rank(self, rank: Rank) -> None:
        own = cycle_of(rank)
        if own < self._cycle:
            self.complain(
                f"{rank.host.name} starts workers of cycle {rank.cycle} after those of cycle {self._cycle[2]}"
            )
        self._cycle = max(self._cycle, own)


class OneRun(Checker):
    """A process starts nothing in another run of the job than that of the first leader it met.

    If the backend has lost its data, and the job has ended under leaders none of which the process has met since, the
    verdict that it finds may as well be an earlier run's, from a backup: it begins the job again (docs/simulation.md).
    """

    def spawn(self, host: Host, action: node_messages.SpawnWorkers) -> None:
        if host.newest_era < self.world.era_before_run.get(host.run_number, 0):
            return
        if host.first_run not in (None, host.run_number):
            self.complain(f"{host.name} takes part in run {host.run_number} of the job, and knew run {host.first_run}")


class ConsecutiveRanks(Checker):
    """The nodes of a cycle agree about its ranks, which are 0 to world size - 1, and about its store."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._parts: dict[Cycle, list[tuple[str, node_messages.SpawnWorkers]]] = {}

    def spawn(self, host: Host, action: node_messages.SpawnWorkers) -> None:
        run, cycle = (host.run_number, host.history), action.assignment.cycle
        parts = self._parts.setdefault((*run, cycle), [])
        parts.append((host.name, action))
        for older in [each for each in self._parts if each < (*run, cycle - 1)]:
            self._check(older)

    def end(self) -> None:
        for cycle in list(self._parts):
            self._check(cycle)

    def _check(self, group: Cycle) -> None:
        parts, cycle = self._parts.pop(group), group[2]
        size = self.world.setup.rules.local_world_size
        given = [action.assignment for _, action in parts]
        names, group_ranks = {name for name, _ in parts}, {each.group_rank for each in given}
        if not len(names) == len(group_ranks) == len(parts):
            self.complain(f"cycle {cycle} has a part twice: {parts}")
        if any(each.first_rank != each.group_rank * size for each in given):
            self.complain(f"the ranks of cycle {cycle} have gaps: {given}")
        shapes = {(each.world_size, each.group_world_size) for each in given}
        if len(shapes) != 1 or any(each.group_rank >= each.group_world_size for each in given):
            self.complain(f"the nodes of cycle {cycle} disagree about its size: {given}")
        if any(each.world_size != each.group_world_size * size for each in given):
            self.complain(f"the world of cycle {cycle} is not that of its nodes: {given}")
        stores = {(action.store_host, action.store_port) for _, action in parts}
        first = [name for name, action in parts if action.assignment.group_rank == 0]
        if len(stores) != 1 or (first and first[0] != parts[0][1].store_host):
            self.complain(f"cycle {cycle} has one store, on the node of group rank 0: {stores}, {first}")


class Budget(Checker):
    """One fault uses one restart; used restarts stay used, under any leader; nothing else uses any."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._used = 0
        self._ordered = (0, 0), 0  # run and history, and the value in its last order
        self._units = 0  # the units that the faults until now may use

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        self._units += self._units_at_most(fault) if is_harmful else 0

    def order(self, leader: Host, term: int, name: str, order: Order) -> None:
        if not isinstance(order, StartCycle):
            return
        run, was_used = self._ordered
        now_run = self.world.run_of_term.get(term, 0), self.world.histories.of_term[term]
        if run == now_run and order.restarts_used < was_used:
            self.complain(f"{leader.name} gives units back: {order.restarts_used} are used, and were {was_used}")
        self._ordered = now_run, order.restarts_used

    def decision(self, state: coordinator.State, event: JobEvent) -> None:
        used, most = coordinator.restarts_used(state), self.world.setup.rules.restart.max_restarts
        if used == self._used:
            return
        if self.world.backend is None and used < self._used:  # one whose time is up may decide what it can't order
            self.complain(f"the budget was reset from {self._used} to {used}")
        if self.world.backend is None and used > self._used + 1:
            self.complain(f"{used - self._used} units were taken at once")
        if used > self._units:
            self.complain(f"{used} units are used after {self._units} faults: {event.reason}")
        if used > most:
            self.complain(f"{used} units are used of {most}")
        self._used = used

    def _units_at_most(self, fault: Fault) -> int:
        """A stopped leader loses each of its nodes at a separate moment; so does an elected one.

        A slow link is harmful only with relays. Then an answer takes seconds, and its node is lost again and again.
        """
        if fault.kind is Kind.SLOW_LINK:
            return 1 + int(fault.lasts_s // SILENCE_S)
        is_of_leader = fault.kind in _OF_LEADER and (
            self.world.leader.name in fault.nodes or self.world.backend is not None
        )
        return max(1, len(self.world.setup.names) - 1) if is_of_leader else 1

    def end(self) -> None:
        """A cycle begins only for a fault or a request."""
        state = self.world.leader.coordinator
        restarts = (Kind.RESTART, Kind.DRAIN, Kind.NODE_LEAVES)
        requests = sum(fault.kind in restarts for fault in self.world.struck)
        if self.world.backend is not None:
            requests *= 3  # each is repeated to the next leader
            requests += self.world.backend.leads  # a cycle that a leader could not order from all nodes costs nothing
        if state is not None and state.cycle > max(coordinator.restarts_used(state), self._used) + requests:
            self.complain(f"cycle {state.cycle} was reached with {self._used} units and {requests} requests")


def _is_of_one_node(verdict: Verdict) -> bool:
    return has_left(verdict) or verdict.reason.endswith(UNLED) or verdict.reason == DEFECT


class Agreement(Checker):
    """All nodes end with the same verdict, once.

    Exceptions are nodes that the leader has lost, or that lost it before they got the verdict, and nodes that leave. If
    the backend loses its data while the verdict is on its way, a node that lost the leader through that may find nobody
    who knows it (decision 21).
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[Host, Verdict] = {}
        self._ordered: set[Verdict] = set()
        self._unknowing: set[Host] = set()

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        leads = self.world.leader.coordinator
        is_decided = self._ordered or (leads is not None and isinstance(leads.phase, Ended))  # it is kept, then ordered
        if fault.kind in DATA_LOST and is_decided:
            self._unknowing.update(host for host in self.world.hosts.values() if host not in self._heard)

    def order(self, leader: Host, term: int, name: str, order: Order) -> None:
        if isinstance(order, Conclude):
            self._ordered.add(order.verdict)

    def verdict(self, host: Host, verdict: Verdict) -> None:
        if host in self._heard:
            self.complain(f"{host.name} has ended twice")
        self._heard[host] = verdict
        if not verdict.reason:
            self.complain(f"{host.name} has ended without a reason")

    def end(self) -> None:
        by_leader = {
            host: each
            for host, each in self._heard.items()
            if host not in self._unknowing and (not host.lost_leader or each in self._ordered)
            if not _is_of_one_node(each) and not each.reason.startswith(ELSEWHERE)
        }
        known = {(each.state, each.exit_code, each.reason) for each in by_leader.values()}
        if len(known) > self.world.histories.count + max(self.world.run_of_term.values(), default=0):
            self.complain(f"the nodes disagree: { ({host.name: each for host, each in by_leader.items()}) }")
        for host, each in self._heard.items():
            is_told = each in self._ordered or _is_of_one_node(each)
            if host.lost_leader and not is_told and (each.state, each.exit_code) != (JobState.FAILED, 1):
                self.complain(f"{host.name} has lost its leader and ends as {each}")


class Outcome(Checker):
    """The verdict fits the events, and is the last report about a job."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[Host, str] = {}
        self._requests: set[Kind] = set()
        self._is_harmed = False
        self._has_left_alone = False  # a node that nobody answered; the others may be too few
        self._ended_badly: dict[Cycle, str] = {}

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        if fault.kind in REQUESTS:
            self._requests.add(fault.kind)
        self._is_harmed = self._is_harmed or is_harmful

    def event(self, host: Host, event: JobEvent) -> None:
        if event.kind != "spawner_killed":  # it may not end by itself
            self._last[host] = event.kind

    def rank_end(self, rank: Rank) -> None:
        if rank.code != 0:
            self._ended_badly[cycle_of(rank)] = f"rank {rank.rank} of {rank.host.name}"

    def end(self) -> None:
        leader = self.world.leader
        if leader.verdict is None or leader.coordinator is None or leader.verdict.state is not JobState.SUCCEEDED:
            return
        if not isinstance(leader.coordinator.phase, Ended):
            return  # it has learned how another run ended
        term = leader.coordinator.term  # the leader may have taken no part in the run whose verdict it has found
        run, history = self.world.run_of_term.get(term, 0), self.world.histories.of_term.get(term, 0)
        bad = self._ended_badly.get((run, history, leader.coordinator.cycle))
        if bad and self.world.setup.rules.restart.policy is RestartPolicyName.ANY_FAILED:
            self.complain(f"the job has succeeded, and {bad} has not")

    def verdict(self, host: Host, verdict: Verdict) -> None:
        ends = "node_left" if has_left(verdict) else f"job_{verdict.state}"
        if self._last.get(host) != ends:
            self.complain(f"the last word of {host.name} is {self._last.get(host)}, and it ends as {verdict.state}")
        match verdict.state:
            case JobState.SUCCEEDED:
                if verdict.exit_code:
                    self.complain(f"a job that has succeeded has exit code {verdict.exit_code}")
            case JobState.STOPPED if has_left(verdict):
                self._has_left_alone |= UNANSWERED in verdict.reason
                if not self._requests & _LEAVING:
                    self.complain(f"nobody has asked {host.name} to leave: {verdict}")
            case JobState.STOPPED if verdict.reason.endswith(UNLED):
                if not self._requests & (_STOPS | _LEAVING) or verdict.exit_code not in (1, 93, 128 + 2, 128 + 15):
                    self.complain(f"nobody has asked {host.name} to end: {verdict}")
            case JobState.STOPPED:
                if not self._requests & _STOPS or verdict.exit_code not in (93, 128 + 2, 128 + 15):
                    self.complain(f"nobody has asked for the end {verdict}")
            case _:
                # A stop may come before some nodes have met a leader: they begin another run, which may be too small.
                is_other = self.world.histories.count > 1 or any(self.world.run_of_term.values())
                is_other_run = bool(self._requests) and is_other
                is_excused = Kind.EXCLUDE in self._requests or self._is_harmed or self._has_left_alone
                if not is_excused and not is_other_run:
                    self.complain(f"nothing went wrong, and the job fails: {verdict}")


class Progress(Checker):
    """One cut of a node, or between two, ends no job that could do without that node, whoever leads."""

    def end(self) -> None:
        world, struck, rules = self.world, self.world.struck, self.world.setup.rules
        if world.backend is None or len(struck) != 1 or struck[0].kind not in CUTS or not rules.restart.max_restarts:
            return
        verdicts = [host.verdict for host in world.hosts.values() if host.verdict is not None]
        is_enough = len(world.hosts) > rules.restart.min_nodes and struck[0].at_s > ALL_HAVE_JOINED_S
        if is_enough and not any(each.state is JobState.SUCCEEDED for each in verdicts):
            self.complain(f"one cut of {struck[0].nodes} ends the job: {verdicts}")


class LedgerIsKept(Checker):
    """A backend that has lost its data, or got back older data, soon has the job's ledger again."""

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        if fault.kind in DATA_LOST:
            self.world.timeline.after(WRITTEN_AGAIN_S, lambda: self._look(fault))

    def _look(self, fault: Fault) -> None:
        backend = self.world.backend
        if backend is None or backend.leader is None or self.world.struck[-1] is not fault:
            return
        state, ledger = backend.leader.leader_term.host.coordinator, backend.ledger
        if state is None or not isinstance(state.phase, Running) or backend.leader.leader_term.is_over:
            return
        if self.world.timeline.now_s < self.world.ordered_s + WRITTEN_S:
            return
        if (
            0.0 < backend.leader.leader_term.order_waits_s < WRITTEN_S
        ):  # a new cycle: it is written before it is ordered
            return
        if (ledger.cycle, ledger.restarts_used) != (state.cycle, coordinator.restarts_used(state)):
            self.complain(f"the ledger is not written again: {ledger}")


class NoEarlyHang(Checker):
    """A rank is called hung only after the allowed silence, and only once."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._found: set[tuple[str, int, int | None]] = set()

    def event(self, host: Host, event: JobEvent) -> None:
        if event.kind != "hang_detected":
            return
        hang = host.name, event.cycle, event.rank
        if hang in self._found:
            self.complain(f"one hang is found twice: {event.reason}")
        self._found.add(hang)
        rank = next((each for each in reversed(host.processes.ranks) if each.rank == event.rank), None)
        now_s = self.world.timeline.now_s
        if rank is None or rank.silent_from_s is None or now_s < rank.silent_from_s + LIMIT_S * 0.98 - HEARTBEAT_S:
            self.complain(f"a hang verdict came early: {event.reason}")


class NoHealthyWorkerEnded(Checker):
    """No rank gets a signal if nothing went wrong, however slow supervisors and network are."""

    _is_excused = False

    def fault(self, fault: Fault, *, is_harmful: bool) -> None:
        self._is_excused = self._is_excused or is_harmful or fault.kind in REQUESTS

    def signal(self, host: Host, action: node_messages.SignalWorkers | node_messages.KillTree) -> None:
        if self._is_excused:
            return
        ranks = [each for each in host.processes.ranks if each.alive and each.cycle == action.cycle]
        if ranks:
            self.complain(f"{host.name} ends {len(ranks)} healthy ranks")


class NoHastyLoss(Checker):
    """No connection is ended for its silence while a message waits, and no node is lost that was not waited for.

    A leader that is stopped does not wait meanwhile. It notices a stop by a deadline that it has missed.
    """

    def silence(self, host: Host, arrived_s: float, *, is_loss: bool) -> None:
        silent_s = self.world.timeline.now_s - arrived_s
        if silent_s < SILENCE_S / (1 + DRIFT_MAX):
            self.complain(f"{host.name} calls a connection silent {silent_s:.3f} s after a message has arrived")
        waited_s, stops = host.ran_s(arrived_s)
        least_s = LOST_S / (1 + DRIFT_MAX) - stops * (CHECK_S + LATE_S)
        if is_loss and waited_s < least_s:
            self.complain(f"{host.name} gives up a node for which it has waited only {waited_s:.3f} s")


class NoLateFence(Checker):
    """The fence of a node counts from no later moment than that from which its leader counts."""

    def fence(self, host: Host, known_s: float, heard_s: float) -> None:
        if known_s > heard_s + ROUNDING_S:
            self.complain(f"{host.name} counts from {known_s - heard_s:.3f} s after its leader has heard it")


class Liveness(Checker):
    """If no process runs and nothing is in progress, some machine has a deadline: nothing waits indefinitely."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._living = 0

    def rank(self, rank: Rank) -> None:
        self._living += 1

    def rank_end(self, rank: Rank) -> None:
        self._living -= 1

    def look(self) -> None:
        if self._living or self.world.backend is not None:
            return  # a node that seeks an elected leader repeats its question until it gives up
        next_s = self.world.timeline.next_s
        if next_s is None or next_s < self.world.timeline.now_s + UNDER_WAY_S:
            return
        if not any(host.has_deadline or host.is_paused for host in self.world.hosts.values()):
            self.complain("everything waits, and nothing has a deadline")


class BoundedState(Checker):
    """Remembered data does not grow with the number of events."""

    def end(self) -> None:
        state = self.world.leader.coordinator
        most = len(self.world.setup.names) * (1 if self.world.backend is None else 2)  # with parts that nobody knows
        if state is not None and len(state.members) > most:
            self.complain(f"{len(state.members)} members of {len(self.world.setup.names)} nodes")
        for host in self.world.hosts.values():
            if len(host.processes.ranks) > 3 * self.world.setup.rules.local_world_size:
                self.complain(f"{host.name} keeps {len(host.processes.ranks)} ranks")


# In a wrapped call, another node may take a part in the middle of a cycle, a fault may use a restart for new processes
# and another one if the call then fails, and a job may succeed without ranks.
_OF_CALLS = frozenset[type[Checker]]({ConsecutiveRanks, Budget, Outcome})


def all_of(world: World) -> list[Checker]:
    kinds = (
        Exclusivity, OneLeader, OneRun, ConsecutiveRanks, Budget, Agreement, Outcome, Progress, LedgerIsKept,
        NoEarlyHang, NoHealthyWorkerEnded, NoHastyLoss, NoLateFence, Liveness, BoundedState,
    )  # fmt: skip
    left_out = _OF_CALLS if world.setup.is_wrapped else frozenset[type[Checker]]()
    return [kind(world) for kind in kinds if kind not in left_out]
