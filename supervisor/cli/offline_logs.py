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
    found = False
    for folder in dict.fromkeys((own, *(Path(node.log_dir) for node in others))):
        with suppress(NotFoundError):
            log_follower.check_any(folder, report.job_id, choice)
            found = True
            yield from log_follower.read(folder, report.job_id, choice)
    missing = _missing(report, others, choice)
    places = ", ".join(f"{node.name} (in {node.log_dir})" for node in missing[:NAMED_MAX])
    places += f" and {len(missing) - NAMED_MAX} more nodes" if len(missing) > NAMED_MAX else ""
    if found and missing and choice.rank is None:
        on_note(f"the output of the ranks on {places} is not shown; run holdfast logs {report.job_id} there")
    elif not found and missing:
        what = "the output" if choice.rank is None else f"the output of rank {choice.rank}"
        raise NotFoundError(
            f"cannot show {what} of job {report.job_id}: it lies on {places}; run holdfast logs {report.job_id} there"
        )
    elif not found:
        log_follower.check_any(own, report.job_id, choice)


def _missing(report: JobReport, others: Sequence[JobNodeReport], choice: LogChoice) -> list[JobNodeReport]:
    """Returns the nodes whose logs can't be seen here; if it is known where the chosen rank ran, that node alone."""
    away = [node for node in others if not os.path.isdir(node.log_dir)]
    if choice.rank is None or choice.cycle not in (None, report.cycle):
        return away
    homes = {rank.node for rank in report.ranks if rank.rank == choice.rank}
    return [node for node in away if not homes or node.name in homes]
