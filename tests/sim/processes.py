"""The processes of a simulated node: a spawner that obeys late, badly or not at all, and its ranks."""

from __future__ import annotations

import math
import signal as signals
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, assert_never

from supervisor.core.facts import Evidence, Progress, StackGroup, WorkerExit
from supervisor.core.node import node_messages
from supervisor.programs.simulation.simulated_timeline import What
from tests.sim.faults import FOREVER_S
from tests.sim.setup import HEARTBEAT_S, JOB
from tests.sim.wrapped_rank import WrappedRank

if TYPE_CHECKING:
    from tests.sim.host import Host

START_MAX_S = 0.2
OF_PROCESSES = frozenset({
    node_messages.StartSpawner, node_messages.PrepareStore, node_messages.SpawnWorkers, node_messages.SignalWorkers,
    node_messages.KillTree, node_messages.MoveFence, node_messages.EndSpawner, node_messages.KillSpawner,
    node_messages.ReadProgress, node_messages.CollectEvidence, node_messages.LookAtRanks,
    node_messages.RespawnWorkers, node_messages.TellRanks, node_messages.ReconnectRanks,
})  # fmt: skip
LOOKED_S = 0.001  # the spawner takes its orders before it checks its timers


@dataclass(eq=False, slots=True)
class Rank:
    """One worker process."""

    host: Host
    cycle: int
    local_rank: int
    rank: int
    pid: int
    started_at_s: float
    run_number: int = 0  # of the job
    history: int = 0  # of that run
    alive: bool = True
    has_client: bool = False
    silent_from_s: float | None = None
    ignores_term: bool = False
    is_stuck: bool = False  # in the kernel: it does nothing more, and no signal ends it
    is_doomed: bool = False  # a fault has hit it
    code: int | None = None
    wrapped: WrappedRank | None = None  # None: it has no Wrapper

    def join(self) -> None:
        """Says hello to its supervisor."""
        progress = self.progress(self.host.world.timeline.now_s)
        limits = self.host.world.setup.rules.hang_limits
        self.host.take(node_messages.ClientJoined(JOB, self.cycle, self.local_rank, limits, progress))

    def progress(self, now_s: float) -> Progress:
        last_s = now_s if self.silent_from_s is None else min(now_s, self.silent_from_s)
        beats = int((last_s - self.started_at_s) / HEARTBEAT_S)
        local_s = self.host.local_s
        beat_s = self.started_at_s + beats * HEARTBEAT_S
        return Progress(
            initialised_at_s=local_s(self.started_at_s),
            out_of_section_since_s=local_s(self.started_at_s),
            heartbeat_at_s=local_s(beat_s) if beats else None,
            heartbeats=beats,
            read_at_s=local_s(now_s),
        )


@dataclass(slots=True)
class Spoilt:
    """Errors that will happen next time."""

    start_fails: bool = False
    start_takes_s: float = 0.0
    store_fails: bool = False
    spawn_fails_from: int | None = None  # the local rank
    evidence_absent: bool = False
    kill_fails: bool = False
    term_ignored: bool = False


class FenceMove(NamedTuple):
    """An order to the spawner, which waits to be read. `ordered_at_s`: in the world's time."""

    perform: Callable[[float, float], None]
    until_s: float
    ordered_at_s: float

    def __call__(self) -> None:
        self.perform(self.until_s, self.ordered_at_s)


class TreeKill(NamedTuple):
    """An order to end what is left of a cycle, which waits to be read."""

    perform: Callable[[int], None]
    cycle: int

    def __call__(self) -> None:
        self.perform(self.cycle)


class Processes:
    """The processes that one supervisor has started."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self.ranks: list[Rank] = []  # of the last cycle, and what is left of older ones
        self.spawner = 0  # the number of the live one; 0: none
        self.started = 0
        self.silent_until_s = 0.0
        self._busy_until_s = 0.0
        self._told: deque[tuple[float, int, What]] = deque()
        self.frozen_until_s = 0.0  # the whole machine is stopped
        self.serves_store = False
        self._fence_s = math.inf  # then the live spawner ends all its processes
        self._told_s: float | None = None  # the limit that a spawner gets which is there later
        self._is_well = False  # as last ordered: the fence is moved continuously
        self._played_since_s = -math.inf  # the fence; before, all was well, and it was moved continuously
        self._never_starts: int | None = None  # the cycle whose end the spawner has read together with its start
        self.spoilt = Spoilt()
        self._first_rank = self._world_size = 0  # as last ordered

    def perform(self, action: node_messages.Action) -> None:
        match action:
            case node_messages.SpawnWorkers():
                self._spawn(action)
            case node_messages.SignalWorkers():
                self._world.note_signal(self._host, action)
                self.by_spawner(partial(self._signal, action))
            case node_messages.KillTree(cycle=cycle):
                self._world.note_signal(self._host, action)
                self.by_spawner(TreeKill(self._kill_tree, cycle))
            case node_messages.StartSpawner(number=number):
                self._start_spawner(number)
            case node_messages.PrepareStore(cycle=cycle):
                self.by_spawner(partial(self._serve_store, cycle))
            case node_messages.MoveFence(until_s=until_s):
                self.by_spawner(FenceMove(self._move_fence, until_s, self._world.timeline.now_s), 0.0)
            case node_messages.EndSpawner():
                number = self.spawner
                self.by_spawner(lambda: self.lose_spawner("it ended as it was told", number))
            case node_messages.KillSpawner():
                self._kill_spawner(self.started)
            case node_messages.ReadProgress(local_rank=local_rank):
                self._read(local_rank)
            case node_messages.CollectEvidence(cycle=cycle):
                self._collect(cycle)
            case node_messages.RespawnWorkers() | node_messages.TellRanks() | node_messages.ReconnectRanks():
                self._reach_wrapped(action)
            case node_messages.LookAtRanks():
                pass  # Nothing depends on the answer, which may be missing.
            case _:
                raise AssertionError(action)

    def end_all(self) -> None:
        """Ends everything: the machine lost its power, or the spawner was lost."""
        self.spawner = 0
        for rank in self.ranks:
            self._end(rank)

    # --- the spawner

    def by_spawner(self, what: What, delay_s: float | None = None) -> None:
        """Lets the current spawner do something, in the order of its orders."""
        now_s = self._world.timeline.now_s
        if delay_s is None:
            delay_s = self._world.random.random() * self._world.setup.answer_max_s
        at_s = now_s + delay_s
        if at_s < self._busy_until_s:
            at_s = self._busy_until_s  # it does one thing after another
        self._busy_until_s = at_s
        if self.spawner:
            self._told.append((at_s, self.spawner, what))
            self._world.timeline.at(at_s, self._obey)

    def _obey(self) -> None:
        now_s = self._world.timeline.now_s
        while self._told:
            at_s, spawner, what = self._told[0]
            until_s = max(at_s, self.silent_until_s, self.frozen_until_s)
            if spawner != self.spawner:
                self._told.popleft()
            elif until_s <= now_s:
                self._told.popleft()
                what()
            else:
                if at_s <= now_s and until_s < FOREVER_S:
                    self._world.timeline.at(until_s, self._obey)
                return

    def _start_spawner(self, number: int) -> None:
        self.started = number
        spoilt = self.spoilt
        takes_s = spoilt.start_takes_s or self._world.random.uniform(0.0, START_MAX_S)
        fails, spoilt.start_fails, spoilt.start_takes_s = spoilt.start_fails, False, 0.0

        def come_up() -> None:
            if number != self.started or self._host.is_dead:
                return
            if fails:
                self._host.take(node_messages.SpawnerLost(JOB, number, "it exited with code 1"))
                return
            self.spawner, self.silent_until_s, self._fence_s = number, 0.0, math.inf
            self._busy_until_s = 0.0
            if self._told_s is not None and self._told_s < FOREVER_S:
                self._move_fence(self._told_s, self._world.timeline.now_s)
            self._host.take(node_messages.SpawnerReady(JOB, number))

        self._world.timeline.after(takes_s, come_up)

    def _kill_spawner(self, number: int) -> None:
        if self.spoilt.kill_fails:
            self.spoilt.kill_fails = False
            self.end_all()  # its workers die; it stays in the kernel and reports nothing
        else:
            self._world.timeline.after(0.01, lambda: self.lose_spawner("it was killed as ordered", number))

    def lose_spawner(self, reason: str, number: int) -> None:
        """Loses the spawner; its workers die with it."""
        if number == self.started and self.spawner in (0, number):
            self.end_all()
            self._host.take(node_messages.SpawnerLost(JOB, number, reason))

    def _move_fence(self, until_s: float, ordered_at_s: float) -> None:
        if until_s >= FOREVER_S and ordered_at_s < self._played_since_s:
            return  # Heard late: the real order names a moment, which has passed by now.
        self._fence_s = at_s = self._host.moment_s(until_s) if until_s < FOREVER_S else math.inf
        if at_s < math.inf:
            self._world.timeline.at(at_s, lambda: self.by_spawner(lambda: self._stand_at_fence(at_s), LOOKED_S))

    def had_fence(self, until_s: float) -> None:
        """Sets the fence when needed: while all is well it is not played. The spawner got it before its next order."""
        was_well, self._is_well = self._is_well, until_s >= FOREVER_S
        self._told_s = until_s
        if not self.spawner or self._is_well:
            return
        is_played = self._fence_s < math.inf
        if was_well or not is_played:  # It may still have to hear that all was well.
            self._played_since_s = self._world.timeline.now_s
        if not is_played:
            self._move_fence(until_s, self._played_since_s)

    def _stand_at_fence(self, at_s: float) -> None:
        """Ends the workers: the supervisor is stopped and has not moved the fence, and another node may take over."""
        if self._fence_s == at_s:
            for rank in [each for each in self.ranks if each.alive and not each.is_stuck]:
                self.exit(rank, signal=int(signals.SIGKILL))

    def _serve_store(self, cycle: int) -> None:
        if self.spoilt.store_fails:
            self.spoilt.store_fails = False
            self._host.take(node_messages.StoreFailed(JOB, cycle, "no port"))
            return
        self.serves_store = True
        self._host.take(node_messages.StoreReady(JOB, cycle, self._host.name, 20_000 + cycle))

    # --- the ranks

    def _spawn(self, action: node_messages.SpawnWorkers) -> None:
        self._world.note_spawn(self._host, action)
        self.ranks = [rank for rank in self.ranks if rank.alive]
        first_rank, cycle = action.assignment.first_rank, action.assignment.cycle
        self._first_rank, self._world_size = first_rank, action.assignment.world_size
        fails_from, self.spoilt.spawn_fails_from = self.spoilt.spawn_fails_from, None
        self.by_spawner(partial(self._read_start, cycle), 0.0)
        for local_rank in range(self._world.setup.rules.local_world_size):
            if fails_from is not None and local_rank >= fails_from:
                why = "cannot open its log folder: no space left on device"
                self._host.take(node_messages.SpawnFailed(JOB, cycle, local_rank, why, 1))
            else:
                self.by_spawner(partial(self._fork, cycle, local_rank, first_rank + local_rank))

    def _reach_wrapped(
        self, action: node_messages.RespawnWorkers | node_messages.TellRanks | node_messages.ReconnectRanks
    ) -> None:
        match action:
            case node_messages.RespawnWorkers(cycle=cycle, local_ranks=local_ranks):
                self.ranks = [rank for rank in self.ranks if rank.alive]
                for local_rank in local_ranks:
                    number = self._first_rank + local_rank
                    self.by_spawner(partial(self._fork, cycle, local_rank, number, stands_in=True))
            case node_messages.TellRanks(cycle=cycle, local_ranks=local_ranks, order=order):
                for wrapped in self._wrapped(cycle, local_ranks):
                    if not isinstance(order, node_messages.Accepted):
                        wrapped.hear_soon(order)
            case node_messages.ReconnectRanks(cycle=cycle):
                for wrapped in self._wrapped(cycle):
                    wrapped.reconnect()
            case _:
                assert_never(action)

    def _wrapped(self, cycle: int, local_ranks: tuple[int, ...] | None = None) -> list[WrappedRank]:
        """Returns the connected ranks of the cycle that have a Wrapper. `local_ranks` None: all."""
        return [
            each.wrapped
            for each in self.ranks
            if each.alive and each.has_client and each.cycle == cycle and each.wrapped is not None
            if local_ranks is None or each.local_rank in local_ranks
        ]

    def _fork(self, cycle: int, local_rank: int, number: int, *, stands_in: bool = False) -> None:
        world, host = self._world, self._host
        if cycle == self._never_starts:
            return
        if world.timeline.now_s >= self._fence_s:
            self._read_fences()
        if world.timeline.now_s >= self._fence_s:
            self._end_at_once(cycle, local_rank, number)
            return
        now_s = world.timeline.now_s
        rank = Rank(host, cycle, local_rank, number, world.next_pid(), now_s, host.run_number, host.history)
        rank.ignores_term = self.spoilt.term_ignored
        self.ranks.append(rank)
        world.note_rank(rank)
        host.take(node_messages.WorkerSpawned(JOB, cycle, local_rank, rank.pid))
        world.timeline.after(world.random.uniform(0.0, START_MAX_S), partial(self._hello, rank))
        if world.setup.is_wrapped:
            rank.wrapped = WrappedRank(rank, self._world_size, stands_in=stands_in)
            return
        life_s = world.random.uniform(*world.setup.life_s)
        world.timeline.after(life_s, partial(self.finish, rank))

    def _read_start(self, cycle: int) -> None:
        """Drops a start if the end of its cycle waits to be read, too, as a spawner that was stopped does."""
        if any(what == TreeKill(self._kill_tree, cycle) for _, _, what in self._told):
            self._never_starts = cycle

    def _read_fences(self) -> None:
        """Hears the fences that wait: a spawner reads what has come during a start before it ends anything.

        One that was ordered after the present fence saves nothing.
        """
        waiting, self._told = self._told, deque()
        for at_s, spawner, what in waiting:
            if spawner == self.spawner and isinstance(what, FenceMove) and what.ordered_at_s <= self._fence_s:
                what()
            else:
                self._told.append((at_s, spawner, what))

    def _end_at_once(self, cycle: int, local_rank: int, number: int) -> None:
        """Kills a new process before it has done anything: the fence has passed."""
        pid = self._world.next_pid()
        now_s = self._host.local_s(self._world.timeline.now_s)
        ended = WorkerExit(local_rank, number, pid, None, int(signals.SIGKILL), now_s)
        self._host.take(node_messages.WorkerSpawned(JOB, cycle, local_rank, pid))
        self._host.take(node_messages.WorkerExited(JOB, cycle, ended))

    def _hello(self, rank: Rank) -> None:
        if rank.alive and not rank.is_stuck:
            rank.has_client = True
            rank.join()
            if rank.wrapped is not None:
                rank.wrapped.enter()

    def finish(self, rank: Rank) -> None:
        if rank.silent_from_s is None and not rank.is_stuck:
            if self.frozen_until_s > self._world.timeline.now_s:
                self._world.timeline.at(self.frozen_until_s, lambda: self.finish(rank))
            else:
                self.exit(rank, code=0)

    def exit(self, rank: Rank, *, code: int | None = None, signal: int | None = None) -> None:
        if not rank.alive:
            return
        rank.code = code
        self._end(rank)
        self._host.take(node_messages.WorkerEndSeen(JOB, rank.cycle, rank.local_rank))
        now_s = self._host.local_s(self._world.timeline.now_s)
        ended = WorkerExit(rank.local_rank, rank.rank, rank.pid, code, signal, now_s)
        self.by_spawner(partial(self._host.take, node_messages.WorkerExited(JOB, rank.cycle, ended)))
        if rank.pid % 2 and rank.has_client:
            self._host.take(node_messages.ClientLeft(JOB, rank.cycle, rank.local_rank))

    def _end(self, rank: Rank) -> None:
        if rank.alive:
            rank.alive = False
            self._world.note_rank_end(rank)

    def _signal(self, action: node_messages.SignalWorkers) -> None:
        for rank in [each for each in self.ranks if each.alive and each.cycle == action.cycle and not each.is_stuck]:
            if action.local_ranks and rank.local_rank not in action.local_ranks:
                continue
            if action.signal == signals.SIGKILL:
                self.exit(rank, signal=int(signals.SIGKILL))
            elif not rank.ignores_term:
                answer = 0 if self._world.chance(0.3) else None
                self.exit(rank, code=answer, signal=None if answer == 0 else action.signal)

    def _kill_tree(self, cycle: int) -> None:
        stuck: list[int] = []
        for rank in self.ranks:
            if rank.cycle == cycle and rank.alive:
                if rank.is_stuck:
                    stuck.append(rank.pid)
                else:
                    self.exit(rank, signal=int(signals.SIGKILL))
        self.by_spawner(partial(self._host.take, node_messages.WorkersEmptied(JOB, cycle, tuple(stuck))))

    def living(self, local_rank: int) -> Rank | None:
        """Returns the newest one that is not stuck in the kernel."""
        found = (each for each in reversed(self.ranks) if each.alive and each.local_rank == local_rank)
        return next(found, None)

    def _read(self, local_rank: int) -> None:
        rank = self.living(local_rank)
        if rank is not None and rank.has_client:
            progress = rank.progress(self._world.timeline.now_s)
            self._host.take(node_messages.ProgressRead(JOB, rank.cycle, local_rank, progress))

    def _collect(self, cycle: int) -> None:
        if self.spoilt.evidence_absent:
            self.spoilt.evidence_absent = False
            return
        evidence = Evidence((StackGroup((0,), "train.py:1 in step"),), source="py-spy")
        taken = node_messages.EvidenceCollected(JOB, cycle, evidence)
        self._world.timeline.after(self._world.random.uniform(0.0, 0.2), lambda: self._host.take(taken))
