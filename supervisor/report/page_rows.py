"""Which incidents, stacks, cycles, nodes and events does the page show, in which order, and which of them open?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from supervisor.core.event_weights import Weight, weight
from supervisor.core.node_ranges import sorted_names
from supervisor.local_time import local_time
from supervisor.ports.reports import RecordedEvent
from supervisor.report import formatting
from supervisor.report.lanes import by_node, troubles_of
from supervisor.report.phases import LOOKS
from supervisor.report.timeline.timeline import Cycle, Incident, Life, Outcome, Phase

INCIDENTS_OPEN_MAX = 4  # incidents that are shown open: the one that ended the job, and the most costly ones
INCIDENTS_MAX = 500  # incidents shown with all details
OVERVIEW_MAX = 2000  # incidents in the table of all; if there are more, the newest
STACKS_OPEN_MAX = 3  # groups of stacks that are shown open; the unusual ones come first
RANKS_NAMED_MAX = 12  # of a group of stacks
EVENTS_MAX = 30  # of one incident
NODES_MAX = 50  # those with the most failures come first; the others open
CYCLES_MAX = 500


def incidents(life: Life) -> list[tuple[Incident, bool]]:
    """Returns the incidents that are described, and whether each is open."""
    by_weight = sorted(
        life.incidents, key=lambda each: (each.outcome is not Outcome.ENDED_JOB, -each.cost_s(life.until_ns))
    )
    opened = {each.number for each in by_weight[:INCIDENTS_OPEN_MAX]}
    shown = sorted(by_weight[:INCIDENTS_MAX], key=lambda each: each.number)
    return [(each, each.number in opened) for each in shown]


def overview(life: Life) -> list[tuple[Incident, bool]]:
    """Returns the incidents in the table of all, and whether each is described, too; else links lead there."""
    described = {each.number for each, _ in incidents(life)}
    return [(each, each.number in described) for each in life.incidents[-OVERVIEW_MAX:]]


def places(life: Life) -> set[int]:
    """Returns the numbers of the incidents that a link can lead to."""
    described = (each for each, _ in incidents(life))
    return {each.number for each in (*described, *life.incidents[-OVERVIEW_MAX:])}


def noticed(incident: Incident, life: Life) -> str:
    began = local_time(incident.noticed_ns, milliseconds=True, separator=" ")
    where = f"cycle {incident.cycle}" + (f", iteration {incident.iteration}" if incident.iteration else "")
    return f"{began}, {formatting.after(incident.noticed_ns, life.began_ns)} after the beginning, in {where}"


def budget(incident: Incident, life: Life) -> str:
    if incident.outcome is Outcome.TOLERATED:
        return ""
    return "nothing" if incident.units_used is None else f"{incident.units_used} of {life.max_restarts} used then"


def phase_shares(incident: Incident) -> list[tuple[Phase, float, float]]:
    """Returns phase, seconds and share of the incident's time, in their order."""
    whole_s = sum(span.took_s for span in incident.phases) or 1.0
    return [(span.phase, span.took_s, span.took_s / whole_s) for span in incident.phases]


def phase_bars(incident: Incident) -> Iterator[tuple[str, str, str]]:
    """Yields look, place and width of the phases in a bar that is 1000 wide."""
    x = 0.0
    for phase, _, share in phase_shares(incident):
        yield LOOKS[phase], f"{x:.1f}", f"{max(share * 1000, 2):.1f}"
        x += share * 1000


def stack_groups(incident: Incident) -> Iterator[tuple[str, Sequence[str], bool]]:
    """Yields the ranks of a group, their frames, and whether it is open."""
    for at, group in enumerate(incident.stacks):
        ranks = group.ranks.split(", ")
        more = len(ranks) - RANKS_NAMED_MAX
        named = ", ".join(ranks[:RANKS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        is_open = at == 0 or (at < STACKS_OPEN_MAX and len(incident.stacks) <= 8)
        yield f"rank{'' if len(ranks) == 1 else 's'} {named}", group.stack.split("\n"), is_open


def stragglers(life: Life) -> Iterator[tuple[RecordedEvent, str, str]]:
    """Yields each with the slow ranks and their node; the event itself is of the node that has compared them."""
    for event in life.stragglers[-CYCLES_MAX:]:
        details = dict(event.details)
        ranks = details.get("ranks", "" if event.rank is None else str(event.rank))
        yield event, ranks, details.get("straggler_node", event.node)


def cycles(life: Life) -> Iterator[tuple[Cycle, float | None, Incident | None]]:
    """Yields each cycle, how long its ranks ran, and the incident that ended it."""
    ended_by = {each.cycle: each for each in life.incidents if each.outcome in (Outcome.RESTARTED, Outcome.ENDED_JOB)}
    for cycle in life.cycles[-CYCLES_MAX:]:
        ran_s = None
        if cycle.started_ns is not None:
            until_ns = cycle.stopping_ns if cycle.stopping_ns is not None else life.until_ns
            ran_s = max(0, until_ns - cycle.started_ns) / 1e9
        yield cycle, ran_s, ended_by.get(cycle.number)


def nodes(life: Life) -> list[tuple[str, str, str, int, str]]:
    """Returns name, state, ranks, number of faults and reason of the nodes, those with the most faults first."""
    runs, troubles, known = by_node(life), troubles_of(life), {each.name: each for each in life.nodes}
    names = sorted(sorted_names(runs.keys() | known.keys()), key=lambda name: -troubles[name])
    return [
        (
            name,
            known[name].state if name in known else "-",
            formatting.ranks([run.rank for run in runs.get(name, [])]),
            troubles[name],
            known[name].reason if name in known else "",
        )
        for name in names
    ]


def mark_kinds(life: Life) -> list[tuple[str, int]]:
    return Counter(each.kind for each in life.marks).most_common(8)


def is_loud(event: RecordedEvent) -> bool:
    return weight(event.kind) in (Weight.FAULT, Weight.LOSS)
