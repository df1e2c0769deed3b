"""Which lanes does a picture of a job's life have, and what is drawn in each?"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from supervisor.core.node_ranges import sorted_names
from supervisor.report import formatting
from supervisor.report.phases import LOOKS
from supervisor.report.timeline.timeline import Incident, Life, Phase, Run, RunEnd, Trouble

RANK_LANES_MAX = 40  # more ranks are drawn by node
NODE_LANES_MAX = 24  # of more nodes, only those with trouble are drawn


class Bar(msgspec.Struct, frozen=True):
    look: str  # one of phases.LEGEND
    from_ns: int
    to_ns: int


class Lane(msgspec.Struct, frozen=True):
    label: str
    bars: tuple[Bar, ...]
    failed_ns: tuple[int, ...] = ()  # a process of this lane failed, or was lost
    is_head: bool = False  # a node above its ranks


def job_lane(life: Life) -> Lane:
    return Lane("job", tuple(Bar(LOOKS[span.phase], span.from_ns, span.to_ns) for span in life.course))


def chosen_lanes(life: Life) -> tuple[Lane, ...]:
    """Returns a lane for each rank, or each node, or each node with trouble plus one that counts the rest."""
    nodes = by_node(life)
    painter = Painter(life)
    if sum(len({run.rank for run in runs}) for runs in nodes.values()) <= RANK_LANES_MAX:
        return tuple(_ranks_below_nodes(nodes, painter))
    troubles = troubles_of(life)
    troubled = sorted(nodes, key=lambda name: -troubles[name])
    lanes = [painter.lane(name, nodes[name]) for name in sorted_names(troubled[:NODE_LANES_MAX])]
    if rest := troubled[NODE_LANES_MAX:]:
        runs = [run for name in rest for run in nodes[name]]
        failures = sum(troubles[name] for name in rest)
        told = formatting.plural(failures, "fault") if failures else "no fault"
        lanes.append(painter.lane(f"{len(rest):,} more nodes ({told})", runs))
    return tuple(lanes)


def by_node(life: Life) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in life.runs:
        found.setdefault(run.node, []).append(run)
    return found


def troubles_of(life: Life) -> Counter[str]:
    """Returns how often a process of each node failed, was lost or hung."""
    found = Counter(run.node for run in life.runs if is_failure(run))
    found.update(each.node for each in life.incidents if each.trouble is Trouble.HANG and each.node)
    return found


def is_failure(run: Run) -> bool:
    return run.end in (RunEnd.FAILED, RunEnd.LOST)


def _ranks_below_nodes(nodes: dict[str, list[Run]], painter: Painter) -> Iterator[Lane]:
    for name, runs in nodes.items():
        if len(nodes) > 1:
            yield Lane(name, (), is_head=True)
        for rank in sorted({run.rank for run in runs}):
            yield painter.lane(f"rank {rank}", [run for run in runs if run.rank == rank])


class Painter:
    """Draws runs: the job's course while a process lived, and the silence of silent ranks."""

    def __init__(self, life: Life) -> None:
        self._until_ns = life.until_ns
        self._course = life.course
        self._ends = [span.to_ns for span in life.course]
        self._silent: dict[int, list[Incident]] = {}
        for incident in life.incidents:
            if incident.noticed_ns > incident.began_ns:
                self._silent.setdefault(incident.cycle, []).append(incident)

    def lane(self, label: str, runs: Sequence[Run]) -> Lane:
        bars: list[Bar] = []
        failed: list[int] = []
        for cycle in sorted({run.cycle for run in runs}):
            own = [run for run in runs if run.cycle == cycle]
            from_ns = min(run.started_ns for run in own)
            to_ns = max(run.ended_ns if run.ended_ns is not None else self._until_ns for run in own)
            for bar in self._bars(from_ns, to_ns, self._silences(cycle, own)):
                if bars and (bars[-1].look, bars[-1].to_ns) == (bar.look, bar.from_ns):
                    bars[-1] = msgspec.structs.replace(bars[-1], to_ns=bar.to_ns)
                else:
                    bars.append(bar)
            failed += [run.ended_ns for run in own if is_failure(run) and run.ended_ns is not None]
        return Lane(label, tuple(bars), tuple(sorted(set(failed))))

    def _silences(self, cycle: int, runs: Sequence[Run]) -> list[Incident]:
        ranks, nodes = {run.rank for run in runs}, {run.node for run in runs}
        return [
            silent
            for silent in self._silent.get(cycle, [])
            if not ranks.isdisjoint(silent.culprits) or (not silent.culprits and silent.node in nodes)
        ]

    def _bars(self, from_ns: int, to_ns: int, silences: Sequence[Incident]) -> Iterator[Bar]:
        for span in self._course[bisect.bisect_right(self._ends, from_ns) :]:
            if span.from_ns >= to_ns:
                return
            look = LOOKS[span.phase]
            if span.phase in (Phase.UNNOTICED, Phase.DECIDING):
                is_silent = any(each.began_ns <= span.from_ns <= each.noticed_ns for each in silences)
                look = "unnoticed" if is_silent else "run"
            elif span.phase in (Phase.WAITING, Phase.MEETING, Phase.ENDING):
                look = "run"  # It is alive, though the job has not begun or is over.
            yield Bar(look, max(span.from_ns, from_ns), min(span.to_ns, to_ns))
