"""What have the workers of a job printed that has ended, or that no supervisor answers for any more?

A job on several nodes has left its logs on each of them. Those that this node can read, such as on a shared file
system, are read; of the others the user learns where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.edges.operators import log_follower
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import NotFoundError
from supervisor.ports.reports import JobNodeReport, JobReport

NAMED_MAX = 3  # nodes in one message


def read(report: JobReport, choice: LogChoice, *, on_note: Callable[[str], None]) -> Iterator[LogPiece]:
    """Yields the output that this node can read. `on_note` is told what is missing. Blocks. Raises NotFoundError."""
    own = Path(report.log_dir)
    others = [node for node in report.nodes if node.log_dir and Path(node.log_dir) != own]
    folders = [*dict.fromkeys((own, *(Path(node.log_dir) for node in others)))]
    found = False
    for folder in folders:
        with suppress(NotFoundError):
            log_follower.check_any(folder, report.job_id, choice)
            found = True
            yield from log_follower.read(folder, report.job_id, choice)
    away = [node for node in others if not os.path.isdir(node.log_dir)]
    missing = _missing(report, away, choice)
    there = f"run holdfast logs {report.job_id} there"
    if found and missing and choice.rank is None:
        on_note(f"the output of the ranks on {_places(missing)} is not shown; {there}")
    elif found and away and not _has_all_cycles(report, folders, choice):
        homes = missing or away if choice.tail_lines else away  # In other cycles, it may have run on any node.
        on_note(f"rank {choice.rank} may have printed more on {_places(homes)}; {there}")
    elif not found and missing:
        what = "the output" if choice.rank is None else f"the output of rank {choice.rank}"
        raise NotFoundError(f"cannot show {what} of job {report.job_id}: it lies on {_places(missing)}; {there}")
    elif not found:
        log_follower.check_any(own, report.job_id, choice)


def _places(nodes: Sequence[JobNodeReport]) -> str:
    places = ", ".join(f"{node.name} (in {node.log_dir})" for node in nodes[:NAMED_MAX])
    return places + (f" and {len(nodes) - NAMED_MAX} more nodes" if len(nodes) > NAMED_MAX else "")


def _has_all_cycles(report: JobReport, folders: Sequence[Path], choice: LogChoice) -> bool:
    """Returns whether the chosen rank has a folder here for each cycle that is to be shown."""
    if choice.cycle is not None:
        return True  # It was found.
    cycles = range(report.cycle if choice.tail_lines else 0, report.cycle + 1)
    return all(
        any((folder / f"cycle_{cycle}" / f"rank_{choice.rank}").is_dir() for folder in folders) for cycle in cycles
    )


def _missing(report: JobReport, away: Sequence[JobNodeReport], choice: LogChoice) -> list[JobNodeReport]:
    """Returns those of the nodes that may have what was chosen: that alone where the rank ran, if this is known."""
    if choice.rank is None or choice.cycle not in (None, report.cycle):
        return [*away]
    homes = {rank.node for rank in report.ranks if rank.rank == choice.rank}
    return [node for node in away if not homes or node.name in homes]
