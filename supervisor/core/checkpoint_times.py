"""How many checkpoints have a job's ranks written, and how long did they take?

A checkpoint is a section whose name begins with "checkpoint", which is what the callbacks and the guides call it. Each
job has one such machine, where it is led. It reports the count of a cycle whenever it has at least doubled, so that a
job of any length leaves few events. The slowest rank counts: the others wait for it. The job is not affected.
"""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobEvent
from supervisor.core.stragglers.straggler_messages import SectionsTold, Tell

PREFIX = "checkpoint"
SECTIONS_MAX = 4  # of such names in one job

Event = SectionsTold
Action = Tell


class _Section(msgspec.Struct):
    times: int = 0  # of the rank with most
    total_s: float = 0.0  # of the slowest rank
    tell_at: int = 1


class State(msgspec.Struct):
    """Changes in place."""

    cycle: int = -1
    sections: dict[str, _Section] = msgspec.field(default_factory=dict[str, _Section])


def initial_state() -> State:
    return State()


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    """Takes a node's report on the sections of its ranks."""
    del now_s
    if event.cycle < state.cycle:
        return state, ()
    if event.cycle > state.cycle:
        state.cycle, state.sections = event.cycle, {}
    actions: tuple[Action, ...] = ()
    for number, name in enumerate(event.names):
        if not name.startswith(PREFIX):
            continue
        section = state.sections.get(name)
        if section is None:
            if len(state.sections) >= SECTIONS_MAX:
                continue
            section = state.sections[name] = _Section()
        for rank in event.ranks:
            if number < min(len(rank.times), len(rank.total_s)):
                section.times = max(section.times, rank.times[number])
                section.total_s = max(section.total_s, rank.total_s[number])
        if section.times >= section.tell_at:
            section.tell_at = 2 * section.times
            actions += (Tell(_measured(name, section, state.cycle)),)
    return state, actions


def next_deadline_s(state: State) -> float | None:
    """Returns None: counts come with the nodes' reports."""
    del state
    return None


def _measured(name: str, section: _Section, cycle: int) -> JobEvent:
    times, mean_s = section.times, section.total_s / section.times
    counted = "1 checkpoint has" if times == 1 else f"{times} checkpoints have"
    reason = f"{counted} been written in cycle {cycle} (section {name!r}), {mean_s:.3g} s each on the slowest rank"
    details = (("section", name), ("times", str(times)), ("total_s", f"{section.total_s:.3f}"))
    return JobEvent("checkpoints_measured", reason, max(cycle, 0), None, details)
