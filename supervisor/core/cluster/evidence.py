"""Which stacks are there of a cycle in which ranks hang, and when is nobody waited for any more?

One machine for each cycle. A node that finds a hang asks for the stacks of all ranks on all nodes; they are taken at
the same time, within one budget. The nodes that asked act on their hang once all stacks are in, or the budget is over.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster.messages import Action, DeadlineReached, Publish, Send, StacksTaken, StacksWanted
from supervisor.core.facts import Evidence, JobEvent, StackGroup
from supervisor.core.orders import ActOnHang, TakeStacks

MARGIN_S = 0.1  # beyond the budget, for an answer that is under way

# --- states --------------------------------------------------------------------------------------------------------


class Quiet(msgspec.Struct, frozen=True):
    pass


class Taking(msgspec.Struct, frozen=True):
    awaited: tuple[str, ...]  # nodes that have not answered
    asking: tuple[str, ...]  # nodes that wait for the outcome
    until_s: float
    budget_s: float
    parts: tuple[Evidence, ...] = ()


State = Quiet | Taking

Event = StacksWanted | StacksTaken | DeadlineReached
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Quiet()


def step(state: State, event: Event, *, now_s: float, cycle: int, nodes: tuple[str, ...]) -> Outcome:
    """`nodes` run the cycle."""
    match event:
        case StacksWanted():
            return _want(state, event, now_s, cycle, nodes)
        case StacksTaken(node, _, evidence):
            if not isinstance(state, Taking) or node not in state.awaited:
                return state, (_said(evidence, cycle),)  # Late, but still what a person wants to read.
            awaited = tuple(each for each in state.awaited if each != node)
            state = msgspec.structs.replace(state, awaited=awaited, parts=(*state.parts, evidence))
            return (state, ()) if awaited else _close(state, cycle)
        case DeadlineReached():
            if not isinstance(state, Taking) or now_s < state.until_s:
                return state, ()
            return _close(state, cycle)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return state.until_s if isinstance(state, Taking) else None


def _want(state: State, event: StacksWanted, now_s: float, cycle: int, nodes: tuple[str, ...]) -> Outcome:
    match state:
        case Quiet():
            taking = Taking(nodes, (event.node,), now_s + event.budget_s + MARGIN_S, event.budget_s)
            take = TakeStacks(cycle, event.accused, event.budget_s)
            return taking, tuple(Send(node, take) for node in nodes)
        case Taking():
            if event.node in state.asking:
                return state, ()
            return msgspec.structs.replace(state, asking=(*state.asking, event.node)), ()
        case _:
            assert_never(state)


def _close(state: Taking, cycle: int) -> Outcome:
    said: list[Action] = []
    if state.parts:
        said.append(_said(_merged(state.parts), cycle))
    if state.awaited:
        whose = "" if not state.parts else f" of {', '.join(state.awaited)}"
        text = f"no stacks{whose} came within {state.budget_s} s; going on without"
        said.append(Publish(JobEvent("stacks_missing", text, cycle)))
    return Quiet(), (*said, *(Send(node, ActOnHang(cycle)) for node in state.asking))


def _merged(parts: tuple[Evidence, ...]) -> Evidence:
    """Equal stacks of all nodes together, the smallest groups first: what few ranks do is the odd thing."""
    if len(parts) == 1:
        return parts[0]
    ranks: dict[str, tuple[int, ...]] = {}
    for group in (group for part in parts for group in part.groups):
        ranks[group.stack] = tuple(sorted((*ranks.get(group.stack, ()), *group.ranks)))
    groups = [StackGroup(of, stack) for stack, of in ranks.items()]
    return Evidence(
        groups=tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks))),
        notes=tuple(note for part in parts for note in part.notes),
        source=", ".join(sorted({part.source for part in parts if part.source})),
        took_s=max(part.took_s for part in parts),
    )


def _said(evidence: Evidence, cycle: int) -> Action:
    text = evidence.summary() or "no stacks could be taken"
    if evidence.notes:
        text += f" ({'; '.join(evidence.notes)})"
    details = tuple((f"ranks {', '.join(map(str, each.ranks))}", each.stack) for each in evidence.groups)
    details += (("source", evidence.source), ("took_s", f"{evidence.took_s:.3f}"))
    return Publish(JobEvent("stacks_collected", text, cycle, details=details))
