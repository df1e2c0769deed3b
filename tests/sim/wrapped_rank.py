"""How does a rank behave if its whole script is one wrapped call? All ranks are active, and no function raises."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervisor.core.node import node_messages
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallLeave,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    FaultsReported,
    FromRank,
    Interrupt,
    IterationBegan,
    Leaving,
    Restart,
    Stage,
    ToRank,
)
from tests.core.simulated_rank import SimulatedRank
from tests.sim.setup import JOB

if TYPE_CHECKING:
    from tests.sim.processes import Rank

SETTINGS = CallSettings(soft_timeout_s=1e6, hard_timeout_s=1e6)
CALL = 1
HEARD_S = 0.002
UNWINDS_MAX_S = 0.5
ENDS_S = 0.1


class WrappedRank:
    def __init__(self, rank: Rank, world_size: int, *, stands_in: bool) -> None:
        self._of = rank
        self._world = rank.host.world
        self._call = SimulatedRank(rank.rank, world_size, stands_in=stands_in)

    def enter(self) -> None:
        call = self._call
        call.call, call.stage, call.rank, call.size = CALL, Stage.ENTERING, call.member, call.world_size
        self._say(call.entry(SETTINGS))
        self._world.timeline.after(SETTINGS.barrier_timeout_s, self._give_up)

    def reconnect(self) -> None:
        """Says where it is to a supervisor whose leader has changed."""
        self._of.host.take(node_messages.ClientLeft(JOB, self._of.cycle, self._of.local_rank))
        self._of.join()
        if self._call.stage is not None:
            self._say(self._call.entry(SETTINGS))

    def hear_soon(self, order: ToRank) -> None:
        self._world.timeline.after(HEARD_S, partial(self._hear, order))

    def _hear(self, order: ToRank) -> None:
        call = self._call
        if not self._of.alive or call.stage is None or order.call != CALL:
            return
        match order:
            case CallUnderway():
                call.is_late = True
            case Entered() if call.stage is Stage.ENTERING:
                self._begin(order)
            case BeginIteration() if call.stage is Stage.RESTARTING and order.iteration > call.iteration:
                self._begin(order)
            case Interrupt(_, at) if at == call.iteration:
                self._say(FaultsReported(CALL, at))
            case Restart(_, at) if at == call.iteration and not call.is_restarting and not call.assigns(at):
                call.stage, call.is_restarting = Stage.UNWINDING, True
                delay_s = self._world.random.uniform(0, UNWINDS_MAX_S)
                self._world.timeline.after(delay_s, partial(self._arrive, Barrier.ITERATION, at))
            case Committed(_, at):
                self._say(CallLeave(CALL, at, Leaving.DONE, ""))
                self._exit(0)
            case CallRefused():
                self._exit(1)
            case _:
                pass

    def _begin(self, plan: Entered | BeginIteration) -> None:
        call = self._call
        if not call.assign(plan):
            self._world.complain("wrapped", f"rank {call.member} lives and is told that it does not: {plan}")
        call.begin()
        at, rank, size = call.iteration, call.rank, call.size
        self._say(IterationBegan(CALL, at, rank, size, rank, size))
        life_s = self._world.random.uniform(*self._world.setup.life_s)
        self._world.timeline.after(life_s, partial(self._arrive, Barrier.COMPLETION, at))

    def _arrive(self, barrier: Barrier, at: int) -> None:
        call, is_end = self._call, barrier is Barrier.COMPLETION
        if self._of.alive and call.iteration == at and call.stage is (Stage.RUNNING if is_end else Stage.UNWINDING):
            call.stage = Stage.COMPLETING if is_end else Stage.RESTARTING
            self._say(BarrierArrive(CALL, at, barrier, call.rank, active=True))

    def _give_up(self) -> None:
        if self._call.stage is Stage.ENTERING and not self._call.is_late and self._of.alive:
            self._exit(1)

    def _exit(self, code: int) -> None:
        self._call.stage = None
        self._world.timeline.after(ENDS_S, lambda: self._of.host.processes.exit(self._of, code=code))

    def _say(self, word: FromRank) -> None:
        self._of.host.take(node_messages.RankSaid(JOB, self._of.cycle, self._of.local_rank, word))
