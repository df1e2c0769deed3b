"""What must hold in every simulated run, whatever goes wrong? One small class for each promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobEvent, JobState, RestartPolicyName, Verdict
from supervisor.core.node import messages
from tests.sim.faults import WISHES, Fault, Kind
from tests.sim.setup import HEARTBEAT_S, LIMIT_S

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.processes import Rank
    from tests.sim.world import World

UNDER_WAY_S = 3.0  # what is planned sooner than that may be an answer
SLACK_S = 0.5  # for the kill of what a node that was paused still has


class Checker:
    """Sees what happens; complains to the world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def spawn(self, host: Host, action: messages.SpawnWorkers) -> None: ...
    def rank(self, rank: Rank) -> None: ...
    def rank_end(self, rank: Rank) -> None: ...
    def signal(self, host: Host, action: messages.SignalWorkers | messages.KillTree) -> None: ...
    def event(self, host: Host, event: JobEvent) -> None: ...
    def decision(self, state: coordinator.State, event: JobEvent) -> None: ...
    def verdict(self, host: Host, verdict: Verdict) -> None: ...
    def end(self) -> None: ...

    def complain(self, text: str) -> None:
        self.world.complain(type(self).__name__, text)


class Exclusivity(Checker):
    """Two groups of one job never train at once.

    Excepted is a node whose supervisor stands still for longer than others wait for it: it can't end its workers, and
    does so as it goes on. A rank that is stuck in the kernel does not train.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._living: dict[int, dict[Rank, None]] = {}

    def rank(self, rank: Rank) -> None:
        for cycle, ranks in self._living.items():
            beside = next((each for each in ranks if cycle != rank.cycle and self._trains(each)), None)
            if beside is not None:
                self.complain(
                    f"rank {rank.rank} of cycle {rank.cycle} starts on {rank.host.name} beside rank {beside.rank} of "
                    f"cycle {cycle} on {beside.host.name}"
                )
        self._living.setdefault(rank.cycle, {})[rank] = None

    def rank_end(self, rank: Rank) -> None:
        ranks = self._living.get(rank.cycle, {})
        ranks.pop(rank, None)
        if not ranks:
            self._living.pop(rank.cycle, None)

    def _trains(self, rank: Rank) -> bool:
        processes = rank.host.processes
        until_s = max(rank.host.paused_until_s, processes.silent_until_s, processes.frozen_until_s)
        slack_s = SLACK_S + 3 * self.world.setup.answer_max_s
        return not rank.is_stuck and self.world.timeline.now_s > until_s + slack_s

    def end(self) -> None:
        for ranks in self._living.values():
            for rank in ranks:
                if not rank.is_stuck and rank.host.verdict is not None:
                    self.complain(f"rank {rank.rank} of cycle {rank.cycle} is left behind on {rank.host.name}")


class ConsecutiveRanks(Checker):
    """The nodes of a cycle agree about its ranks, which are 0 to world size - 1, and about its store."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._parts: dict[int, list[tuple[str, messages.SpawnWorkers]]] = {}

    def spawn(self, host: Host, action: messages.SpawnWorkers) -> None:
        cycle = action.assignment.cycle
        parts = self._parts.setdefault(cycle, [])
        parts.append((host.name, action))
        for older in [each for each in self._parts if each < cycle - 1]:
            self._check(older)

    def end(self) -> None:
        for cycle in list(self._parts):
            self._check(cycle)

    def _check(self, cycle: int) -> None:
        parts = self._parts.pop(cycle)
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
    """One fault takes one unit; what was taken stays taken; nothing else takes any."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._used = 0

    def decision(self, state: coordinator.State, event: JobEvent) -> None:
        used, most = coordinator.restarts_used(state), self.world.setup.rules.restart.max_restarts
        if used == self._used:
            return
        if used < self._used:
            self.complain(f"the budget was reset from {self._used} to {used}")
        if used > self._used + 1:
            self.complain(f"{used - self._used} units were taken at once")
        faults = sum(self._units_at_most(fault) for fault in self.world.struck)
        if used > faults:
            self.complain(f"{used} units are used after {faults} faults: {event.reason}")
        if used > most:
            self.complain(f"{used} units are used of {most}")
        self._used = used

    def _units_at_most(self, fault: Fault) -> int:
        """A leader that stands still loses each of its nodes, at a moment of its own."""
        is_of_leader = fault.kind in (Kind.SUPERVISOR_PAUSE, Kind.NODE_PAUSE) and fault.node == self.world.leader.name
        return int(fault.is_harmful) * (max(1, len(self.world.setup.names) - 1) if is_of_leader else 1)

    def end(self) -> None:
        """A cycle begins for a fault or a wish, and for nothing else."""
        state = self.world.leader.coordinator
        wishes = sum(fault.kind is Kind.RESTART for fault in self.world.struck)
        if state is not None and state.cycle > coordinator.restarts_used(state) + wishes:
            self.complain(f"cycle {state.cycle} was reached with {self._used} units and {wishes} wishes")


class Agreement(Checker):
    """All nodes end with the same verdict, once.

    Excepted are nodes that the leader has lost, or that have lost it, and nodes that were excluded: they leave alone.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[Host, Verdict] = {}

    def verdict(self, host: Host, verdict: Verdict) -> None:
        if host in self._heard:
            self.complain(f"{host.name} has ended twice")
        self._heard[host] = verdict
        if not verdict.reason:
            self.complain(f"{host.name} has ended without a reason")

    def end(self) -> None:
        leaving = {fault.node for fault in self.world.struck if fault.kind is Kind.EXCLUDE}
        by_leader = {
            host: each
            for host, each in self._heard.items()
            if not host.lost_leader and not (host.name in leaving and each.state is JobState.FAILED)
        }
        known = {(each.state, each.exit_code, each.reason) for each in by_leader.values()}
        if len(known) > 1:
            self.complain(f"the nodes disagree: { ({host.name: each for host, each in by_leader.items()}) }")
        for host, each in self._heard.items():
            is_told = (each.state, each.exit_code, each.reason) in known  # before the leader was lost
            if host.lost_leader and not is_told and (each.state, each.exit_code) != (JobState.FAILED, 1):
                self.complain(f"{host.name} has lost its leader and ends as {each}")


class Outcome(Checker):
    """The verdict fits what has happened, and is the last thing that is said of a job."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[Host, str] = {}
        self._ended_badly: dict[int, str] = {}

    def event(self, host: Host, event: JobEvent) -> None:
        if event.kind != "spawner_killed":  # It may not end by itself.
            self._last[host] = event.kind

    def rank_end(self, rank: Rank) -> None:
        if rank.code != 0:
            self._ended_badly[rank.cycle] = f"rank {rank.rank} of {rank.host.name}"

    def end(self) -> None:
        leader = self.world.leader
        if leader.verdict is None or leader.coordinator is None or leader.verdict.state is not JobState.SUCCEEDED:
            return
        bad = self._ended_badly.get(leader.coordinator.cycle)
        if bad and self.world.setup.rules.restart.policy is RestartPolicyName.ANY_FAILED:
            self.complain(f"the job has succeeded, and {bad} has not")

    def verdict(self, host: Host, verdict: Verdict) -> None:
        if self._last.get(host) != f"job_{verdict.state}":
            self.complain(f"the last word of {host.name} is {self._last.get(host)}, and it ends as {verdict.state}")
        wishes = {fault.kind for fault in self.world.struck if fault.kind in WISHES}
        match verdict.state:
            case JobState.SUCCEEDED:
                if verdict.exit_code:
                    self.complain(f"a job that has succeeded has exit code {verdict.exit_code}")
            case JobState.STOPPED:
                if not wishes & {Kind.STOP, Kind.STOP_BY_SIGNAL} or verdict.exit_code not in (1, 128 + 2):
                    self.complain(f"nobody has asked for the end {verdict}")
            case _:
                excluded = Kind.EXCLUDE in wishes
                if not excluded and not any(fault.is_harmful for fault in self.world.struck):
                    self.complain(f"nothing went wrong, and the job fails: {verdict}")


class NoEarlyHang(Checker):
    """A rank is not called hung before it was silent for as long as it may be, and once only."""

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
    """No rank gets a signal where nothing went wrong, however slow supervisors and network are."""

    def signal(self, host: Host, action: messages.SignalWorkers | messages.KillTree) -> None:
        if any(fault.is_harmful or fault.kind in WISHES for fault in self.world.struck):
            return
        ranks = [each for each in host.processes.ranks if each.alive and each.cycle == action.cycle]
        if ranks:
            self.complain(f"{host.name} ends {len(ranks)} healthy ranks")


class Liveness(Checker):
    """Where no process runs and nothing is under way, some machine has a deadline: nothing waits indefinitely."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._living = 0

    def rank(self, rank: Rank) -> None:
        self._living += 1

    def rank_end(self, rank: Rank) -> None:
        self._living -= 1

    def look(self) -> None:
        next_s = self.world.timeline.next_s
        if self._living or next_s is None or next_s < self.world.timeline.now_s + UNDER_WAY_S:
            return
        if not any(host.has_deadline or host.is_paused for host in self.world.hosts.values()):
            self.complain("everything waits, and nothing has a deadline")


class BoundedState(Checker):
    """What is remembered does not grow with what has happened."""

    def end(self) -> None:
        state = self.world.leader.coordinator
        if state is not None and len(state.members) > len(self.world.setup.names):
            self.complain(f"{len(state.members)} members of {len(self.world.setup.names)} nodes")
        for host in self.world.hosts.values():
            if len(host.processes.ranks) > 3 * self.world.setup.rules.local_world_size:
                self.complain(f"{host.name} keeps {len(host.processes.ranks)} ranks")


def all_of(world: World) -> list[Checker]:
    kinds = (
        Exclusivity, ConsecutiveRanks, Budget, Agreement, Outcome, NoEarlyHang, NoHealthyWorkerEnded, Liveness,
        BoundedState,
    )  # fmt: skip
    return [kind(world) for kind in kinds]
