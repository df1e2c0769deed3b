"""Which ranks and nodes of a job are slower than the others, and since when is that more than noise?

Each job has one such machine, where it is led. It takes the nodes' reports on their ranks' sections, compares the ranks
in rounds of equal length (section_windows.py), and names those that stand out (straggler_significance.py), or their
node if all of its ranks do. A rank stays named until it is like the others again, so one at the threshold is not named
repeatedly. The result does not affect the job. The private dictionaries change in place.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from supervisor.core.facts import JobEvent
from supervisor.core.stragglers import straggler_text as sentences
from supervisor.core.stragglers.section_windows import SectionWindows
from supervisor.core.stragglers.straggler_messages import Action, Event, RankSections, SectionsTold, Straggler, Tell
from supervisor.core.stragglers.straggler_significance import Excesses, Judged

FOUND, GONE = "straggler_found", "straggler_gone"
RANK_MAX = 1 << 17
CELLS_MAX = 1 << 19  # ranks times sections; beyond this, nothing is compared
NAMED_MAX = 32  # in one section
COMPARED_AT_ONCE_MAX = 16384  # ranks of all sections, in one step: the leader has more to do
CROWD_MIN = 8  # with this many ranks, stragglers are few; if many are slow, the ranks do different work
CROWD_SHARE = 4

_Subject = tuple[str, tuple[int, ...]]  # node, ranks


class _Section(msgspec.Struct):
    windows: SectionWindows = msgspec.field(default_factory=SectionWindows)
    excesses: Excesses = msgspec.field(default_factory=Excesses)
    slow: dict[int, Judged] = msgspec.field(default_factory=dict[int, Judged])  # by rank
    named: dict[_Subject, Straggler] = msgspec.field(default_factory=dict[_Subject, Straggler])


class State(msgspec.Struct):
    """Changes in place."""

    cycle: int = -1
    node_of: dict[int, str] = msgspec.field(default_factory=dict[int, str])  # by rank
    sections: dict[str, _Section] = msgspec.field(default_factory=dict[str, _Section])


def initial_state() -> State:
    return State()


def named(state: State) -> tuple[Straggler, ...]:
    """Returns those that are slow now, the slowest first."""
    found = [each for section in state.sections.values() for each in section.named.values()]
    return tuple(sorted(found, key=lambda each: (-each.ratio, each.section, each.ranks)))


def step(state: State, event: Event, *, now_s: float, patience_s: float) -> tuple[State, tuple[Action, ...]]:
    """Takes one event. `patience_s`: how long a round that some ranks have completed waits for the others."""
    if event.cycle < state.cycle:
        return state, ()
    actions: tuple[Action, ...] = ()
    if event.cycle > state.cycle:
        actions = _begin_cycle(state, event.cycle)
    for rank in event.ranks:
        _take(state, event, rank, now_s)
    compared = 0
    for name in event.names:
        section = state.sections.get(name)
        if section is not None and section.windows.is_due(now_s, patience_s=patience_s):
            actions += _close_round(state, name, section)
            compared += len(section.excesses.ranks)
            if compared > COMPARED_AT_ONCE_MAX:
                break  # The next report of any node continues with the next section.
    return state, actions


def next_deadline_s(state: State) -> float | None:
    """Returns None: a round ends with a node's report, and silent nodes are not compared."""
    del state
    return None


def _begin_cycle(state: State, cycle: int) -> tuple[Action, ...]:
    actions = tuple(
        _gone(each, "the ranks have been restarted, and are compared again", state.cycle) for each in named(state)
    )
    state.cycle = cycle
    state.node_of, state.sections = {}, {}
    return actions


def _take(state: State, told: SectionsTold, of: RankSections, now_s: float) -> None:
    if not 0 <= of.rank < RANK_MAX:
        return
    state.node_of[of.rank] = told.node
    for name, times, total_s in zip(told.names, of.times, of.total_s, strict=False):
        section = state.sections.get(name)
        if section is None:
            if not times or (len(state.sections) + 1) * len(state.node_of) > CELLS_MAX:
                continue
            section = state.sections[name] = _Section()
        section.windows.take(of.rank, times, total_s, now_s=now_s)


def _close_round(state: State, name: str, section: _Section) -> tuple[Action, ...]:
    ranks, means_s = section.windows.close_round()
    excesses = section.excesses
    excesses.add(ranks, means_s)
    judged = excesses.judge(sorted({*excesses.candidates(), *section.slow}))
    section.slow = {
        rank: each for rank, each in judged.items() if each.is_slow or (rank in section.slow and not each.is_well)
    }
    before, section.named = section.named, _subjects(state, name, section)
    found = [_found(each, state.cycle) for subject, each in section.named.items() if subject not in before]
    still = {rank for each in section.named.values() for rank in each.ranks}
    gone: list[Action] = []
    for subject, each in before.items():
        if subject not in section.named and not still.issuperset(each.ranks):
            gone.append(_gone(each, _why_gone(each, judged, ranks), state.cycle))
    return (*found, *gone)


def _subjects(state: State, name: str, section: _Section) -> dict[_Subject, Straggler]:
    """Returns slow ranks, or the nodes all of whose ranks are slow."""
    compared = section.excesses.ranks
    slow_of: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(section.slow):
        slow_of[state.node_of[rank]].append(rank)
    if len(compared) >= CROWD_MIN and len(slow_of) > 1 and CROWD_SHARE * len(section.slow) > len(compared):
        return {}
    ranks_of: dict[str, int] = defaultdict(int)
    for rank in compared if slow_of else ():
        ranks_of[state.node_of[rank]] += 1
    subjects: list[_Subject] = []
    for node, ranks in slow_of.items():
        if len(ranks_of) > 1 and len(ranks) > 1 and len(ranks) >= ranks_of[node]:
            subjects.append((node, tuple(ranks)))
        else:
            subjects += [(node, (rank,)) for rank in ranks]
    found = [(subject, _straggler(name, section, subject)) for subject in subjects]
    # Of too many, those that are named already stay, or noise would name and un-name some in each round.
    kept = sorted(found, key=lambda each: (each[0] not in section.named, -each[1].ratio))[:NAMED_MAX]
    return dict(sorted(kept, key=lambda each: -each[1].ratio))


def _straggler(name: str, section: _Section, subject: _Subject) -> Straggler:
    node, ranks = subject
    ratio, median_s = min(section.slow[rank].ratio for rank in ranks), section.excesses.median_s
    took_s, of_ranks = ratio * median_s, len(section.excesses.ranks)
    reason = sentences.found_sentence(name, node, ranks, took_s, median_s, of_ranks)
    return Straggler(name, node, ranks, len(ranks) > 1, ratio, took_s, median_s, of_ranks, reason)


def _found(each: Straggler, cycle: int) -> Tell:
    details = (
        ("section", each.section), ("straggler_node", each.node), ("ranks", sentences.written(each.ranks)),
        ("ratio", f"{each.ratio:.3f}"), ("took_s", f"{each.took_s:.6f}"), ("median_s", f"{each.median_s:.6f}"),
        ("compared_ranks", str(each.of_ranks)),
    )  # fmt: skip
    return Tell(JobEvent(FOUND, each.reason, max(cycle, 0), _one(each), details))


def _gone(each: Straggler, why: str, cycle: int) -> Tell:
    details = (
        ("section", each.section), ("straggler_node", each.node), ("ranks", sentences.written(each.ranks)),
    )  # fmt: skip
    return Tell(JobEvent(GONE, sentences.gone_sentence(each, why), max(cycle, 0), _one(each), details))


def _why_gone(each: Straggler, judged: dict[int, Judged], compared: list[int]) -> str:
    if not set(compared).issuperset(each.ranks):
        return "it no longer runs the section"
    last = [judged[rank] for rank in each.ranks]
    if all(now.is_well for now in last):
        return sentences.well_again(max(now.ratio for now in last), len(compared))
    return "so many ranks are slow that they seem to do different work"


def _one(each: Straggler) -> int | None:
    return each.ranks[0] if len(each.ranks) == 1 else None
