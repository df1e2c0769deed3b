"""A coordinator for the Wrapper's tests, as simple as the protocol allows: one lock, no time, no memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from holdfast_wire.v1 import worker_pb2 as wire

from tests.worker_client.fake_supervisor import Connection, FakeSupervisor


@dataclass
class Coordinator(FakeSupervisor):
    """Serves one job of `world_size` ranks, one connection each."""

    world_size: int = 1
    iteration: int = 0
    call: int = 0
    phase: str = "entering"  # running, last call, restarting
    size: int = 0  # of this iteration
    members: dict[int, Connection] = field(default_factory=dict[int, Connection])  # by initial rank
    ranks: dict[int, int] = field(default_factory=dict[int, int])  # current ranks, of this iteration
    left: list[Connection] = field(default_factory=list[Connection])
    absent: set[int] = field(default_factory=set[int])
    arrived: set[int] = field(default_factory=set[int])
    reported: set[int] = field(default_factory=set[int])
    faults: list[wire.FaultRecord] = field(default_factory=list[wire.FaultRecord])
    is_completed: bool = False
    values: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict[str, dict[int, tuple[int, str]]])
    decisions: list[wire.BeginIteration] = field(default_factory=list[wire.BeginIteration])
    holds_entry: bool = False
    faults_awaited: int = 1  # the last call lasts until there are this many

    def refuse(self, reason: str) -> None:
        """Refuses all ranks, wherever they are."""
        with self._changed:
            self._tell(wire.SupervisorFrame(call_refused=wire.CallRefused(call=self.call, reason=reason)))

    def _serve(self, connection: Connection) -> None:
        super()._serve(connection)
        with self._changed:
            rank = next((rank for rank, each in self.members.items() if each is connection), None)
            if rank is not None and self.phase != "idle" and not self._is_stopping:
                self.faults.append(wire.FaultRecord(rank=rank, interruption=wire.TERMINATED))
                self._remove(rank)
                self._go_on()

    def _take(self, connection: Connection, frame: wire.WorkerFrame) -> None:
        super()._take(connection, frame)
        with self._changed:
            self._hear(connection, frame)
            self._answer_overdue(connection, frame)
            self._go_on()

    def _hear(self, connection: Connection, frame: wire.WorkerFrame) -> None:
        kind = frame.WhichOneof("body")
        if kind == "call_enter":
            if frame.call_enter.stage != wire.CallEnter.ENTERING:
                return
            if frame.call_enter.call != self.call:
                self.members = {}
            self.call = frame.call_enter.call
            self.phase = "entering"
            self.members[frame.call_enter.initial_rank] = connection
            return
        member = next((rank for rank, each in self.members.items() if each is connection), None)
        if member is None or kind in (None, "hello", "progress", "goodbye"):
            return
        word = getattr(frame, kind)
        if (word.call, word.iteration) != (self.call, self.iteration):
            return
        if kind == "iteration_began":
            self.ranks[member], self.size = word.rank, word.world_size
        elif kind == "rank_fault":
            self.faults.append(wire.FaultRecord(rank=word.rank, interruption=word.interruption, reason=word.reason))
            self.reported.add(member)
        elif kind == "faults_reported":
            self.reported.add(member)
        elif kind == "exchange_value":
            self.values.setdefault(word.name, {})[member] = word.rank, word.value
        elif kind == "call_leave":
            self._leave(member, word)
        elif kind == "barrier_arrive":
            if (self.phase == "restarting") != (word.barrier == wire.BarrierArrive.ITERATION):
                return
            self.arrived.add(member)
            if self.phase == "running" and word.active and not self.is_completed:
                self.is_completed = True
                told = wire.CallCompleted(call=self.call, iteration=self.iteration)
                self._tell(wire.SupervisorFrame(call_completed=told))

    def _answer_overdue(self, connection: Connection, frame: wire.WorkerFrame) -> None:
        if frame.call_enter.overdue:
            ranks = set(range(self.world_size)) - self.members.keys()
        elif frame.barrier_arrive.overdue:
            ranks = self.members.keys() - self.arrived
        else:
            return
        missing = wire.RanksMissing(call=self.call, ranks=sorted(ranks), total=len(ranks))
        connection.send(wire.SupervisorFrame(ranks_missing=missing))

    def _leave(self, member: int, word: wire.CallLeave) -> None:
        if self.phase == "idle":
            return
        if word.why == wire.CallLeave.FAULT:
            self.faults.append(wire.FaultRecord(rank=self.ranks.get(member, member), interruption=wire.BASE_EXCEPTION))
            self.left.append(self.members[member])
        self._remove(member)

    def _remove(self, member: int) -> None:
        del self.members[member]
        self.absent.add(member)
        self.ranks.pop(member, None)
        for values in self.values.values():
            values.pop(member, None)

    def _go_on(self) -> None:
        everybody = set(self.members)
        if self.phase == "entering":
            if len(everybody) == self.world_size - len(self.absent) and not self.holds_entry:
                self._begin(0)
                self.size = self.world_size
                self._tell(wire.SupervisorFrame(entered=wire.Entered(call=self.call)))
            return
        for name in [name for name, values in self.values.items() if everybody <= values.keys()]:
            values = dict(self.values.pop(name).values())
            told = wire.Exchanged(call=self.call, iteration=self.iteration, name=name, values=values)
            self._tell(wire.SupervisorFrame(exchanged=told))
        position = {"call": self.call, "iteration": self.iteration}
        if self.phase == "running" and self.faults:
            self.phase = "last call"
            self._tell(wire.SupervisorFrame(interrupt=wire.Interrupt(**position)))
        if self.phase == "last call" and everybody <= self.reported and len(self.faults) >= self.faults_awaited:
            self.phase, self.arrived = "restarting", set()
            self._tell(wire.SupervisorFrame(restart=wire.Restart(**position, records=self.faults)))
        if self.phase == "running" and everybody <= self.arrived:
            self.phase = "idle"
            self._tell(wire.SupervisorFrame(committed=wire.Committed(**position)))
        if self.phase == "restarting" and everybody <= self.arrived:
            gone = set(range(self.size)) - set(self.ranks.values())
            decision = wire.BeginIteration(
                call=self.call, iteration=self.iteration + 1, world_size=self.size, terminated_ranks=sorted(gone)
            )
            self.decisions.append(decision)
            told = wire.SupervisorFrame(begin_iteration=decision)
            for connection in self.left:
                with suppress(OSError):  # it has waited long enough
                    connection.send(told)
            self._begin(self.iteration + 1)
            self._tell(told)

    def _begin(self, iteration: int) -> None:
        self.iteration, self.phase = iteration, "running"
        self.arrived, self.reported, self.faults, self.left = set(), set(), [], []
        self.ranks, self.values, self.is_completed = {}, {}, False

    def _tell(self, frame: wire.SupervisorFrame) -> None:
        for connection in list(self.members.values()):
            connection.send(frame)
