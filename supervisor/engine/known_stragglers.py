"""Which ranks are slow, as far as this node knows?

section_watch.py compares the ranks and notes the slow ones here; reports show them. So neither needs the other.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.engine.job_record import JobRecord


class KnownStragglers:
    """The slow ranks of the jobs that this node leads. `leads`: see ports.Peers."""

    def __init__(self, leads: Callable[[str], bool]) -> None:
        self._leads = leads
        self._named: dict[str, tuple[JobRecord, tuple[Straggler, ...]]] = {}

    def note(self, job: JobRecord, named: tuple[Straggler, ...]) -> None:
        self._named = {job_id: each for job_id, each in self._named.items() if each[0].verdict is None}
        self._named[job.spec.job_id] = job, named

    def of(self, job: JobRecord) -> tuple[Straggler, ...]:
        """Returns the slow ranks of the job now; none if another node leads it."""
        known, named = self._named.get(job.spec.job_id, (None, ()))
        return named if known is job and job.verdict is None and self._leads(job.spec.job_id) else ()
