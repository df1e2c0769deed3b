"""What is a check of a node, what can it find, and is the node fit for the next cycle?

A check has a plan (`CheckPlan`): its name, its deadline, how long a join waits for it, how often it is repeated. It
returns findings, one for each subject: a mount, a GPU, a port. core/node/node_check_round.py decides when a check runs
and what its findings count for; the checks themselves are in edges/machine/health.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from supervisor.core import printable


class Health(enum.StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # something is wrong that may or may not harm the next cycle: evicts no node
    UNHEALTHY = "unhealthy"
    UNANSWERED = "unanswered"  # the check could not tell, or not in time: evicts no node
    SKIPPED = "skipped"  # nothing to check here: no such device or service


class HealthCheckPolicy(enum.StrEnum):
    """How to judge a health service that does not answer, or whose answer can't be used."""

    DOCUMENTED = "documented"  # an unusable answer is unhealthy, no answer is skipped
    TOLERANT = "tolerant"  # unhealthy only if the answer says so, as a boolean or a number
    STRICT = "strict"  # as documented, but no answer is unhealthy, too


class CheckPlan(msgspec.Struct, frozen=True):
    """How one check is run: before every cycle and, with `period_s`, also while the job runs."""

    name: str
    deadline_s: float  # a check that has not answered by then is late
    late: Health = Health.UNANSWERED  # what a late check means for the node
    # How long after the stop began a join waits for the answer; less if the check reports findings before. If neither
    # has come, the previous answer counts. None: the join waits until the deadline.
    patience_s: float | None = None
    period_s: float | None = None


class HealthFinding(msgspec.Struct, frozen=True):
    """What one check found. `reason` is a sentence without a full stop; "": nothing to say."""

    check: str  # the plan's name
    health: Health
    reason: str = ""
    took_s: float = 0.0
    subject: str = ""  # what was checked, if the check has several subjects: a path, a device

    @property
    def name(self) -> str:
        """Returns check and subject, such as "storage /mnt/data"."""
        return f"{self.check} {self.subject}" if self.subject else self.check


class CheckView(msgspec.Struct, frozen=True):
    """A finding as status shows it."""

    finding: HealthFinding
    found_at_s: float


def unfit_sentence(node: str, findings: Iterable[HealthFinding]) -> str:
    """Returns why the node may not take part; "" if it may."""
    reasons = [each.reason for each in findings if each.health is Health.UNHEALTHY]
    return f"node {node} is unhealthy: {'; '.join(reasons)}" if reasons else ""


def one_line(text: str, characters_max: int) -> str:
    """Returns a service's or device's text for people: clipped, and without terminal control characters."""
    line = printable.one_line(" ".join(text.split()))
    if not line:
        return "nothing"
    return line if len(line) <= characters_max else f"{line[:characters_max]}…"
