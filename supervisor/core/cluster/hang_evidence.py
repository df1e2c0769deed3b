"""What is known about all ranks of a cycle in which some hang, and when does the wait for more end?

Each cycle has one such machine. A node that finds a hang requests the stacks of all ranks on all nodes, which are taken
at the same time, within one budget. Once all have arrived, or the budget is over, they lead to one verdict
(core/hangs), and the requesting nodes act on their hang, with the same sentence everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from supervisor.core.cluster.cluster_messages import Action, DeadlineReached, Publish, Send, StacksTaken, StacksWanted
from supervisor.core.facts import Evidence, JobEvent, StackGroup
from supervisor.core.hangs.hang_culprits import HangVerdict, judge
from supervisor.core.orders import ActOnHang, TakeStacks
from supervisor.core.process_facts import Frame

MARGIN_S = 0.1  # beyond the budget, for an answer that is under way

# --- states --------------------------------------------------------------------------------------------------------


class Quiet(msgspec.Struct, frozen=True):
    late: tuple[str, ...] = ()  # nodes that still owe an answer, once for each


class Taking(msgspec.Struct):
    """Changes in place: an answer costs the same whether ten nodes are asked or ten thousand."""

    awaited: dict[str, None]  # nodes that have not answered
    asking: dict[str, None]  # nodes that are waiting for the outcome
    until_s: float
    budget_s: float
    accused: dict[int, None]  # ranks that were found to be silent
    noticed: str = ""  # the sentence about the first of them
    parts: list[Evidence] = msgspec.field(default_factory=list[Evidence])
    late: tuple[str, ...] = ()  # as before


State = Quiet | Taking

Event = StacksWanted | StacksTaken | DeadlineReached
Outcome = tuple[State, tuple[Action, ...]]

# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state() -> State:
    return Quiet()


def step(state: State, event: Event, *, now_s: float, cycle: int, nodes: tuple[str, ...]) -> Outcome:
    """Takes one event. `nodes` run the cycle."""
    match event:
        case StacksWanted():
            return _want(state, event, now_s, cycle, nodes)
        case StacksTaken(node, _, evidence):
            if not isinstance(state, Taking) or node not in state.awaited:
                return _paid(state, node), (_said(evidence, cycle),)  # Late, but people still want to read it.
            del state.awaited[node]
            state.parts.append(evidence)
            return (state, ()) if state.awaited else _close(state, cycle)
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
            until_s = now_s + event.budget_s + MARGIN_S
            taking = Taking(
                awaited=dict.fromkeys(nodes),
                asking={event.node: None},
                until_s=until_s,
                budget_s=event.budget_s,
                accused=dict.fromkeys(event.accused),
                noticed=event.noticed,
                late=state.late,
            )
            take = TakeStacks(cycle, event.accused, event.budget_s)
            return taking, tuple(Send(node, take) for node in nodes)
        case Taking():
            state.asking[event.node] = None
            state.accused |= dict.fromkeys(event.accused)
            state.noticed = state.noticed or event.noticed
            return state, ()
        case _:
            assert_never(state)


def _paid(state: State, node: str) -> State:
    late = list(state.late)
    if node in late:
        late.remove(node)
    return msgspec.structs.replace(state, late=tuple(late))


def _close(state: Taking, cycle: int) -> Outcome:
    said: list[Action] = []
    if state.parts:
        said.append(_said(merged(state.parts), cycle))
    if state.awaited:
        whose = "" if not state.parts else f" of {', '.join(state.awaited)}"
        text = f"no stacks{whose} came within {state.budget_s} s; going on without"
        said.append(Publish(JobEvent("stacks_missing", text, cycle)))
    verdict = judge(merged(state.parts), silent=tuple(state.accused)) if state.parts else None
    quiet = Quiet((*state.late, *state.awaited))
    if verdict is None:
        return quiet, (*said, *(Send(node, ActOnHang(cycle)) for node in state.asking))
    is_same = state.noticed.startswith(verdict.sentence)  # and the notice says for how long
    sentence = state.noticed if is_same else verdict.sentence
    if state.awaited:
        sentence += f"; of the ranks of {', '.join(state.awaited)} nothing is known"
    if state.noticed and not is_same:
        sentence += f"; first noticed: {state.noticed}"
    said.append(_explained(verdict, sentence, cycle))
    return quiet, (*said, *(Send(node, ActOnHang(cycle, sentence)) for node in state.asking))


def merged(parts: Sequence[Evidence]) -> Evidence:
    """Merges equal stacks of all nodes, the smallest groups first, because what few ranks do is unusual."""
    if len(parts) == 1:
        return parts[0]
    frames: dict[str, tuple[Frame, ...]] = {}
    ranks: dict[str, list[int]] = {}
    for group in (group for part in parts for group in part.groups):
        frames[group.stack] = group.frames
        ranks.setdefault(group.stack, []).extend(group.ranks)
    groups = [StackGroup(tuple(sorted(of_stack)), stack, frames[stack]) for stack, of_stack in ranks.items()]
    return Evidence(
        groups=tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks))),
        notes=tuple(note for part in parts for note in part.notes),
        source=", ".join(sorted({part.source for part in parts if part.source})),
        took_s=max(part.took_s for part in parts),
        facts=tuple(each for part in parts for each in part.facts),
    )


def _said(evidence: Evidence, cycle: int) -> Action:
    text = evidence.summary() or "no stacks could be taken"
    if evidence.notes:
        text += f" ({'; '.join(evidence.notes)})"
    details = tuple((f"ranks {', '.join(map(str, each.ranks))}", each.stack) for each in evidence.groups)
    details += (("source", evidence.source), ("took_s", f"{evidence.took_s:.3f}"))
    return Publish(JobEvent("stacks_collected", text, cycle, details=details))


def _explained(verdict: HangVerdict, sentence: str, cycle: int) -> Action:
    details = [("pattern", str(verdict.pattern))]
    for name, ranks in (("culprits", verdict.culprits), ("waiters", verdict.waiters)):
        if ranks:
            details.append((name, ", ".join(map(str, ranks))))
    rank = verdict.culprits[0] if len(verdict.culprits) == 1 else None
    return Publish(JobEvent("hang_explained", sentence, cycle, rank, tuple(details)))
