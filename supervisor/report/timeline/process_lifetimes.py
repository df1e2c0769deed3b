"""When did each process of each rank run, where, and how did it end?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from supervisor.core.facts import JobState
from supervisor.core.node_ranges import sorted_names
from supervisor.ports.reports import RecordedEvent
from supervisor.report.timeline.timeline import Run, RunEnd


def runs_of(events: Sequence[RecordedEvent], *, until_ns: int, state: JobState) -> tuple[Run, ...]:
    """Returns the runs by node (node2 before node10), rank and time. `events`: in order of time."""
    runs = _Runs()
    for event in events:
        runs.take(event)
    if state is JobState.SUCCEEDED:
        runs.close(lambda _: True, until_ns, RunEnd.EXITED, "its end was not reported before the job's")
    elif state.has_ended:
        runs.close(lambda _: True, until_ns, RunEnd.LOST, "nothing more was heard of it")
    order = {name: at for at, name in enumerate(sorted_names(run.node for run in runs.all()))}
    return tuple(sorted(runs.all(), key=lambda run: (order[run.node], run.rank, run.started_ns)))


_Meant = Callable[[Run], bool]


class _Runs:
    def __init__(self) -> None:
        self._open: dict[tuple[int, int], Run] = {}  # cycle and rank
        self._closed: list[Run] = []
        self._cycle = -1

    def all(self) -> list[Run]:
        return [*self._closed, *self._open.values()]

    def take(self, event: RecordedEvent) -> None:
        key = (event.cycle, event.rank if event.rank is not None else -1)
        match event.kind:
            case "worker_started" if event.rank is not None:
                self._end(key, event.at_ns, RunEnd.LOST, "nothing more was heard of it")
                self._open[key] = Run(event.rank, event.node, event.cycle, event.at_ns)
            case "worker_failed":
                self._end(key, event.at_ns, RunEnd.FAILED, event.reason)
            case "worker_exited":
                has_succeeded = event.reason.endswith("exited with code 0")
                self._end(key, event.at_ns, RunEnd.EXITED if has_succeeded else RunEnd.STOPPED, event.reason)
            case "workers_stopped":
                ended = [key for key, run in self._open.items() if (run.node, run.cycle) == (event.node, event.cycle)]
                for each in ended:
                    self._end(each, event.at_ns, RunEnd.STOPPED, event.reason)
            case "cycle_started" if event.cycle > self._cycle:
                self._cycle = event.cycle
                self.close(
                    lambda run: run.cycle < event.cycle, event.at_ns, RunEnd.LOST, "its node was lost, or silent"
                )
            case _:
                pass

    def close(self, is_meant: _Meant, at_ns: int, end: RunEnd, why: str) -> None:
        for key in [key for key, run in self._open.items() if is_meant(run)]:
            self._end(key, at_ns, end, why)

    def _end(self, key: tuple[int, int], at_ns: int, end: RunEnd, reason: str) -> None:
        run = self._open.pop(key, None)
        if run is not None:
            ended_ns = max(at_ns, run.started_ns)
            self._closed.append(msgspec.structs.replace(run, ended_ns=ended_ns, end=end, reason=reason))
