"""What must never happen in a wrapped call, whatever fails? Two decisions, two world sizes, a late decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core.wrapped_calls.call_messages import BeginIteration, Committed, Exchanged, Stage, ToRank
from supervisor.core.wrapped_calls.call_state import State
from tests.core.simulated_rank import SimulatedRank

DECISION_S = 30.0  # a live rank is absent for at most 20 s; its supervisor gives it up after 5

Position = tuple[int, int]  # call, iteration


@dataclass
class CallChecks:
    """Checks one call. `forgets`: supervisors lose their memory, which excuses what no rank could know."""

    forgets: bool
    complaints: list[str] = field(default_factory=list[str])
    decisions: dict[Position, BeginIteration] = field(default_factory=dict[Position, BeginIteration])
    followed: dict[Position, list[tuple[SimulatedRank, BeginIteration]]] = field(
        default_factory=dict[Position, "list[tuple[SimulatedRank, BeginIteration]]"]
    )
    began: dict[Position, list[tuple[SimulatedRank, Position]]] = field(
        default_factory=dict[Position, "list[tuple[SimulatedRank, Position]]"]
    )
    numbers: dict[Position, dict[int, SimulatedRank]] = field(
        default_factory=dict[Position, "dict[int, SimulatedRank]"]
    )
    exchanged: dict[tuple[int, int, str], Exchanged] = field(default_factory=dict["tuple[int, int, str]", Exchanged])
    committed: set[Position] = field(default_factory=set[Position])
    interrupted: list[Position] = field(default_factory=list[Position])
    restarted: list[Position] = field(default_factory=list[Position])
    _interrupted_at_s: float | None = None

    def note_began(self, rank: SimulatedRank, active: int) -> None:
        position = (rank.call, rank.iteration)
        began = self.began.setdefault(position, [])
        began.append((rank, (rank.size, active)))
        # A dead or refused rank can't harm those that continue under a supervisor that never knew it.
        sizes = {sizes for other, sizes in began if not self.forgets or (other.alive and not other.out)}
        holder = self.numbers.setdefault(position, {}).setdefault(rank.rank, rank)
        if len(sizes) > 1:
            self.complaints.append(f"two world sizes in iteration {position}: {sizes}")
        if holder is not rank and not self.forgets:
            self.complaints.append(f"number {rank.rank} was given twice in iteration {position}")

    def note_followed(self, rank: SimulatedRank) -> None:
        """Checks that no two live ranks begin an iteration by different decisions."""
        order = rank.plan
        if not isinstance(order, BeginIteration):
            return
        followed = self.followed.setdefault((order.call, order.iteration), [])
        followed.append((rank, order))
        if any(other.alive and not other.out and decided != order for other, decided in followed):
            self.complaints.append(f"two decisions for one iteration: {[decided for _, decided in followed]}")

    def note_refused(self, rank: SimulatedRank, reason: str, *, may_be_silent: bool) -> None:
        """Checks that a rank which waits for a decision when its supervisor is lost takes part in the next one."""
        is_ready = rank.stage is Stage.RESTARTING and not may_be_silent and not rank.was_away
        if is_ready and "cannot take part" in reason and "when its supervisor came back" in reason:
            self.complaints.append(f"rank {rank.member} was there, and was refused: {reason}")

    def note_respawn(self, before: SimulatedRank) -> None:
        if before.alive:
            self.complaints.append(f"rank {before.member} lives, and a new process is started for it")

    def note_event(self, kind: str, at: int, machine: State, *, now_s: float) -> None:
        position = (machine.call, at)
        if kind == "iteration_interrupted":
            if position in self.interrupted and not self.forgets:
                self.complaints.append(f"iteration {position} was interrupted twice")
            self.interrupted.append(position)
            self._interrupted_at_s = now_s
        elif kind in ("iteration_restarted", "call_lost"):
            # A coordinator that knows nothing does not learn of a rank that left just before.
            is_excused = self.forgets and kind == "call_lost" and at == 0
            late_s = 0.0 if self._interrupted_at_s is None or is_excused else now_s - self._interrupted_at_s
            if late_s > DECISION_S:
                self.complaints.append(f"{kind} only {late_s:.1f} s after the fault")
            self._interrupted_at_s = None
            if kind == "iteration_restarted":
                self.restarted.append(position)
                if waiting := [member for member, each in machine.newcomers.items() if each.entered]:
                    self.complaints.append(f"new processes {waiting} were there, and are not in iteration {position}")

    def note_end(self, ranks: list[SimulatedRank], machine: State) -> None:
        for rank in ranks:
            if rank.alive and not rank.out and rank.stage is not None:
                self.complaints.append(
                    f"rank {rank.member} waits for ever in {rank.stage!r} of iteration {rank.iteration}, "
                    f"the machine is in {machine.phase}"
                )
            if rank.waits_for_decision:
                self.complaints.append(f"rank {rank.member}, which has left, is never told the decision")

    def note_order(self, order: ToRank, machine: State) -> None:
        if isinstance(order, BeginIteration):
            known = self.decisions.setdefault((order.call, order.iteration), order)
            if known != order and not self.forgets:
                self.complaints.append(f"two decisions for one iteration: {known} and {order}")
            if order.iteration <= machine.iteration and (order.call, order.iteration - 1) in self.committed:
                self.complaints.append(f"{order} after that iteration was committed")
        elif isinstance(order, Committed):
            self.committed.add((order.call, order.iteration))
        elif isinstance(order, Exchanged):
            key = (order.call, order.iteration, order.name)
            if self.exchanged.setdefault(key, order) != order and not self.forgets:
                self.complaints.append(f"two results of one exchange: {order}")


def is_excused_refusal(reason: str) -> bool:
    """Returns whether another rank's end, or its own absence, was the cause."""
    harmless = (
        "gone on without", "before it entered", "before all ranks had entered", "not known any more", "no rank is left",
    )  # fmt: skip
    return any(each in reason for each in harmless)
