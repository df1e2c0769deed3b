"""What is the state of one process of a simulated wrapped call, and what may happen to it?"""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core.wrapped_calls.call_messages import (
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallLeave,
    CallSettings,
    Entered,
    ExchangeValue,
    Restart,
    Stage,
)


@dataclass(frozen=True)
class Odds:
    fails: float = 0.3
    dies: float = 0.1
    leaves: float = 0.05
    unfit: float = 0.0  # share of the ranks that leave
    ends_well: float = 0.0  # share of the unfit that exit with code 0, so that no rank replaces them
    hangs: float = 0.05
    disconnects: float = 0.1
    forgets: float = 0.0
    forgets_decision: bool = False  # forgetting of everything, just after a decision that not all may have heard
    silent: float = 0.0  # when everything is forgotten: how many are away for longer than the machine waits
    discarded: float = 0.0
    spawn_fails: float = 0.2
    late: float = 0.3
    nodes_lost: float = 0.0  # how many of them, at most all but one


@dataclass(eq=False)
class SimulatedRank:
    """One process. `stage` None: it is in no call (any more)."""

    member: int
    world_size: int
    alive: bool = True
    connection: int = 0  # a counter; 0: none now
    delay_s: float = 0.001  # until it hears a decision
    stage: Stage | None = None
    call: int = 0
    iteration: int = 0
    rank: int = 0
    size: int = 0
    active: bool = True
    plan: Entered | BeginIteration | None = None  # by which it assigns ranks; None: it is in an iteration, or waits
    number: int = 0  # of the iteration that it assigns ranks for, with its rank there, and of how many
    next_rank: int = 0
    next_size: int = 0
    given: ExchangeValue | None = None  # in the last assignment
    early: list[Restart | CallCompleted] = field(default_factory=list["Restart | CallCompleted"])  # to be obeyed there
    stands_in: bool = False  # started to replace a lost one
    was_away: bool = False
    is_late: bool = False  # waits for the next iteration
    out: str = ""  # why it no longer takes part
    is_restarting: bool = False
    waits_for_decision: bool = False
    farewell: CallLeave | None = None

    def assign(self, plan: Entered | BeginIteration) -> bool:
        """Assigns a rank by ShiftRanks. Returns False if the process is not among those that go on."""
        self.plan, self.number = plan, self.iteration
        self.next_rank, self.next_size = self.rank, self.size
        for begin in plan.history if isinstance(plan, Entered) else (plan,):
            if begin.anew:
                self.next_rank, self.next_size = self.member, self.world_size
            if self.next_rank in begin.terminated_ranks:
                return False
            self.next_rank -= sum(each < self.next_rank for each in begin.terminated_ranks)
            self.next_size = begin.world_size - len(begin.terminated_ranks)
            self.number = begin.iteration
        return True

    def follows(self, plan: Entered | BeginIteration) -> bool:
        """Returns whether it assigns ranks by just this decision, however many values come with it."""
        if isinstance(plan, Entered) and isinstance(self.plan, Entered):
            return (plan.iteration, plan.history) == (self.plan.iteration, self.plan.history)
        return plan == self.plan

    def assigns(self, iteration: int) -> bool:
        """Returns whether it has yet to begin this iteration."""
        return self.stage is Stage.ENTERING or (self.plan is not None and self.number == iteration)

    def begin(self) -> None:
        """Begins the iteration for which a rank was assigned."""
        self.plan, self.iteration, self.rank, self.size = None, self.number, self.next_rank, self.next_size
        self.stage, self.is_restarting = Stage.RUNNING, False

    def entry(self, settings: CallSettings) -> CallEnter:
        assert self.stage is not None
        return CallEnter(
            self.call, self.member, self.world_size, settings, self.stage, self.iteration, self.rank, self.size,
            self.active,
        )  # fmt: skip
