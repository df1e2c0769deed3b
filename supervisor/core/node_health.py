"""What have the checks of a node found, and is the node fit for the next cycle?"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Health(enum.StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    SKIPPED = "skipped"  # it could not be told: that evicts nobody


class HealthCheckPolicy(enum.StrEnum):
    """How much trust a health service gets whose answer can't be used, or that does not answer."""

    DOCUMENTED = "documented"  # an answer that can't be used is unhealthy, no answer is skipped
    TOLERANT = "tolerant"  # unhealthy is what says so, in a boolean or a number
    STRICT = "strict"  # as documented, and no answer is unhealthy, too


class Finding(msgspec.Struct, frozen=True):
    """What one check has found. `reason` is a sentence without a full stop, "" where there is nothing to say."""

    check: str
    health: Health
    reason: str = ""
    took_s: float = 0.0


def unfit_sentence(node: str, findings: Sequence[Finding]) -> str:
    """Why the node may not take part; "" if it may."""
    reasons = [each.reason for each in findings if each.health is Health.UNHEALTHY]
    return f"node {node} is unhealthy: {'; '.join(reasons)}" if reasons else ""
