"""What is a check of a node, what can it find, and is the node fit for the next cycle?

A check has a plan (`CheckPlan`): its name, its deadline, how long a join waits for it, how often it is repeated. It
answers with findings, one for each thing that it looks at: a mount, a GPU, a port. When it is run and what its findings
count for is decided in core/node/fitness.py; the checks themselves are in edges/machine/health.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Health(enum.StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # something is wrong that may harm the next cycle, or not: that evicts nobody
    UNHEALTHY = "unhealthy"
    UNANSWERED = "unanswered"  # the check could not tell, or not in time: that evicts nobody
    SKIPPED = "skipped"  # there is nothing to check here: no such device, no such service


class HealthCheckPolicy(enum.StrEnum):
    """How much trust a health service gets whose answer can't be used, or that does not answer."""

    DOCUMENTED = "documented"  # an answer that can't be used is unhealthy, no answer is skipped
    TOLERANT = "tolerant"  # unhealthy is what says so, in a boolean or a number
    STRICT = "strict"  # as documented, and no answer is unhealthy, too


class CheckPlan(msgspec.Struct, frozen=True):
    """How one check is run. Before a cycle always; with `period_s` also while the job runs."""

    name: str
    deadline_s: float  # a check that has not answered by then is late
    late: Health = Health.UNANSWERED  # what a late check says of the node
    # A join waits for the answer so long after the stop began, and no longer once the check has reported what it has
    # found so far; an earlier answer counts where there is neither. None: it waits to the deadline.
    patience_s: float | None = None
    period_s: float | None = None
    unhealthy_after: int = 1  # so many unhealthy results of one thing in a row count, fewer do not
    healthy_after: int = 1  # so many healthy results in a row make it healthy again


class Finding(msgspec.Struct, frozen=True):
    """What one check has found. `reason` is a sentence without a full stop, "" where there is nothing to say."""

    check: str  # the plan's name
    health: Health
    reason: str = ""
    took_s: float = 0.0
    subject: str = ""  # what was looked at, where the check looks at several things: a path, a device

    @property
    def name(self) -> str:
        """ "storage /mnt/data" """
        return f"{self.check} {self.subject}" if self.subject else self.check


class CheckView(msgspec.Struct, frozen=True):
    """A finding as status shows it."""

    finding: Finding
    found_at_s: float


def unfit_sentence(node: str, findings: Iterable[Finding]) -> str:
    """Why the node may not take part; "" if it may."""
    reasons = [each.reason for each in findings if each.health is Health.UNHEALTHY]
    return f"node {node} is unhealthy: {'; '.join(reasons)}" if reasons else ""


def one_line(text: str, characters_max: int) -> str:
    """What a service or a device has said, for people: clipped, and without what would steer their terminal."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    if not line:
        return "nothing"
    return line if len(line) <= characters_max else f"{line[:characters_max]}…"
