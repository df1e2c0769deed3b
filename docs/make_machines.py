"""Writes docs/architecture/machines.md: what each machine of the core decides, found by driving it, not by reading it.

Every machine gets every event, in a few variants, in every state reached this way. The drawings show what it did.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import types
import typing
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from supervisor.core.cluster import coordinator, hang_evidence, wrapped_call
from supervisor.core.facts import (
    Assignment,
    CallWatch,
    HangLimits,
    JobRules,
    JobState,
    RestartRules,
    Verdict,
    WatchMode,
    WorkerExit,
)
from supervisor.core.node import (
    call_watch,
    hang_response,
    job,
    local_call,
    rank_monitor,
    spawner_deadlines,
    worker_group,
)
from supervisor.core.node.node_messages import SpawnFailed

STATES_MAX = 2000
MOMENTS_S = (0.0, 1e6)
RULES = JobRules("job", local_world_size=2, restart=RestartRules(max_restarts=3))
GENTLE_RULES = msgspec.structs.replace(RULES, rank_termination_signal=15)
ENDED_WORKERS = [
    WorkerExit(local_rank=rank, rank=rank, pid=100 + rank, code=code, signal=None if code is not None else 9, at_s=0.0)
    for rank in range(2)
    for code in (0, 1, None)
]
FIXED: dict[Any, list[Any]] = {
    bool: [False, True],
    int: [0, 1],
    float: [0.0],
    str: [""],
    JobRules: [RULES],
    HangLimits: [HangLimits(heartbeat_s=10.0)],
    CallWatch: [CallWatch(WatchMode.ON, 0.0, 0.0)],
    WorkerExit: ENDED_WORKERS,
    SpawnFailed: [SpawnFailed("job", 0, rank, "", 127) for rank in range(2)],
    Assignment: [Assignment(cycle=cycle, world_size=2) for cycle in range(3)],
    Verdict: [Verdict(JobState.FAILED, 1, "")],
}

HEADER = """# What the machines of the core do

<!-- Written by docs/make_machines.py by driving the machines. Do not edit: run `make docs`. -->

An arrow names an event that made the machine go from one state to another in at least one situation. Events that did
not change the state are not drawn. The type checker ensures that every pair of state and event is handled.
"""


@dataclasses.dataclass(frozen=True)
class Subject:
    module: ModuleType
    start: Any
    extras: tuple[dict[str, Any], ...] = ({},)

    def state_name(self, state: Any) -> str:
        return type(getattr(state, "phase", state)).__name__

    @functools.cached_property
    def events(self) -> list[Any]:
        return [event for kind in members(self.module.Event) for event in samples(kind)]


def subjects() -> list[Subject]:
    opened, _ = job.open_job(RULES, node="node")
    return [
        Subject(rank_monitor, rank_monitor.Silent()),
        Subject(call_watch, call_watch.initial_state(), ({"evidence_budget_s": 0.0}, {"evidence_budget_s": 0.25})),
        Subject(worker_group, worker_group.Empty(), ({"rules": RULES},)),
        Subject(
            hang_response,
            hang_response.initial_state(),
            ({"cycle": 0, "rules": RULES}, {"cycle": 0, "rules": GENTLE_RULES}),
        ),
        Subject(
            spawner_deadlines,
            spawner_deadlines.initial_state(),
            ({"cycle": 0, "rules": RULES},),
        ),
        Subject(job, opened),
        Subject(hang_evidence, hang_evidence.initial_state(), ({"cycle": 0, "nodes": ("", "b")},)),
    ]


def members(union: Any) -> list[Any]:
    return list(typing.get_args(union)) or [union]


def samples(kind: Any) -> list[Any]:
    """Returns a few values of a type: a plain one, and others that differ from it in one field."""
    if kind in FIXED:
        return FIXED[kind]
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return [value for part in typing.get_args(kind) for value in samples(part)[:1]]
    if origin is tuple:
        parts = typing.get_args(kind)
        if parts[-1] is not Ellipsis:
            return [tuple(samples(part)[0] for part in parts)]
        return [(), *((value,) for value in samples(parts[0]))]
    if kind is types.NoneType:
        return [None]
    if issubclass(kind, enum.Enum):
        return list(kind)
    choices = {field.name: samples(field.type) for field in msgspec.structs.fields(kind)}
    plain = {name: values[0] for name, values in choices.items()}
    others = [{**plain, name: value} for name, values in choices.items() for value in values[1:]]
    return [kind(**values) for values in [plain, *others]]


def arrows(subject: Subject) -> dict[tuple[str, str], set[str]]:
    """Returns (from, to) → events, over at most STATES_MAX reachable states."""
    found: dict[tuple[str, str], set[str]] = {}
    queue, known = deque([subject.start]), {repr(subject.start)}  # some states change in place, and have no hash
    while queue:
        state = queue.popleft()
        for event, after in steps(subject, state):
            pair = (subject.state_name(state), subject.state_name(after))
            if pair[0] != pair[1]:
                found.setdefault(pair, set()).add(type(event).__name__)
            if repr(after) not in known and len(known) < STATES_MAX:
                known.add(repr(after))
                queue.append(after)
    return found


def steps(subject: Subject, state: Any) -> Iterator[tuple[Any, Any]]:
    changes_in_place = not _is_hashable(state)
    for event, now_s, extra in itertools.product(subject.events, MOMENTS_S, subject.extras):
        given = deepcopy(state) if changes_in_place else state
        after, _ = subject.module.step(given, event, now_s=now_s, **extra)
        yield event, after


def _is_hashable(state: Any) -> bool:
    try:
        hash(state)
    except TypeError:
        return False
    return True


def section(subject: Subject) -> str:
    name = subject.module.__name__.rsplit(".", 1)[1]
    lines = [f"## {name}", "", first_line(subject.module), "", "```mermaid", "stateDiagram-v2"]
    lines.append(f"    [*] --> {subject.state_name(subject.start)}")
    for (before, after), events in sorted(arrows(subject).items()):
        lines.append(f"    {before} --> {after}: {', '.join(sorted(events))}")
    actions = ", ".join(sorted(kind.__name__ for kind in members(subject.module.Action)))
    return "\n".join([*lines, "```", "", f"Asks for: {actions}.", ""])


def first_line(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").splitlines()[0]


def page() -> str:
    names = ("node.node", "node.job_fold", "node.failed_actions", "cluster.job_termination", "cluster.restart_policy")
    folded = [import_module(f"supervisor.core.{name}") for name in names]
    rest = [f"- `{each.__name__}`: {first_line(each)}" for each in [*folded, coordinator, local_call, wrapped_call]]
    parts = [HEADER, *map(section, subjects()), "## The others\n", "\n".join(rest), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "architecture" / "machines.md").write_text(page())
