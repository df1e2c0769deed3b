"""What is known about one check of the node: is it under way or late, and what has it found?

At most one look is under way. A stuck check is not started again before it has answered, and until then its lateness
counts.
"""

from __future__ import annotations

import msgspec

from supervisor.core.node_check_facts import CheckPlan, Health, HealthFinding


class NodeCheckState(msgspec.Struct, frozen=True):
    """The state of one check. `number` counts its looks. `begun_s` None: none is under way."""

    plan: CheckPlan
    number: int = 0
    begun_s: float | None = None
    is_late: bool = False  # the look has missed its deadline, and has not answered since
    due_s: float | None = None  # when the next look between two cycles is due
    so_far: tuple[HealthFinding, ...] = ()  # from the look under way
    findings: tuple[HealthFinding, ...] = ()  # from the newest answer
    found_at_s: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it may still answer in time."""
        return self.begun_s is not None and not self.is_late

    @property
    def late_at_s(self) -> float | None:
        return self.begun_s + self.plan.deadline_s if self.begun_s is not None and not self.is_late else None


def note(check_state: NodeCheckState, findings: tuple[HealthFinding, ...]) -> NodeCheckState:
    """Notes findings of the look under way, which continues."""
    return msgspec.structs.replace(check_state, so_far=findings)


def patient_until_s(check_state: NodeCheckState, begun_s: float) -> float | None:
    """Returns until when a join waits for the look of a round that began at `begun_s`; None: to the deadline."""
    patience_s = check_state.plan.patience_s
    if patience_s is None:
        return None
    return begun_s if check_state.so_far else begun_s + patience_s


def without_answer(check_state: NodeCheckState, begun_s: float, now_s: float) -> tuple[HealthFinding, ...]:
    """Returns what counts for a round that began at `begun_s` and no longer waits for the look."""
    if check_state.so_far:
        return check_state.so_far
    if check_state.found_at_s is None:
        reason = f"the check {check_state.plan.name} has not answered within {now_s - begun_s:.1f} s"
        return (HealthFinding(check_state.plan.name, Health.UNANSWERED, reason, now_s - begun_s),)
    age = f"found {now_s - check_state.found_at_s:.0f} s ago, no answer since"
    return tuple(
        msgspec.structs.replace(each, reason=f"{each.reason} ({age})" if each.reason else age)
        for each in check_state.findings
    )


def begin(check_state: NodeCheckState, now_s: float) -> NodeCheckState:
    assert check_state.begun_s is None, "it is under way"
    return msgspec.structs.replace(check_state, number=check_state.number + 1, begun_s=now_s, due_s=None)


def answer(check_state: NodeCheckState, findings: tuple[HealthFinding, ...], now_s: float) -> NodeCheckState:
    """Notes the answer of the look under way, in time or late."""
    period_s = check_state.plan.period_s
    return msgspec.structs.replace(
        check_state,
        begun_s=None,
        is_late=False,
        so_far=(),
        due_s=now_s + period_s if period_s is not None else None,
        findings=findings,
        found_at_s=now_s,
    )


def miss(check_state: NodeCheckState, now_s: float) -> NodeCheckState:
    """Notes that the look has missed its deadline."""
    plan = check_state.plan
    reason = f"the check {plan.name} has not answered within {plan.deadline_s:g} s"
    late: tuple[HealthFinding, ...] = (HealthFinding(plan.name, plan.late, reason, plan.deadline_s),)
    if check_state.so_far:
        late = tuple(
            msgspec.structs.replace(each, health=plan.late) if each.health is Health.UNANSWERED else each
            for each in check_state.so_far
        )
    return msgspec.structs.replace(check_state, is_late=True, so_far=(), findings=late, found_at_s=now_s)


def rest(check_state: NodeCheckState) -> NodeCheckState:
    """Starts no more looks."""
    return msgspec.structs.replace(check_state, due_s=None)
