"""Did an iteration make progress, and if not, does the next one begin at once, later, or never?

docs/decisions/0018 has the rule and its figures. A fault after progress never causes a wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.core.wrapped_calls.call_messages import CallSettings, FaultRecord, Interruption

PROGRESS_S = 5.0  # an iteration that ran this long made progress
AT_ONCE_MAX = 10  # iterations in a row without progress after which the next one still begins at once
PAUSE_MIN_S = 0.1  # doubles with each further one
PAUSE_MAX_S = 30.0
IN_A_ROW_MAX = 30
_LOST = frozenset({Interruption.TERMINATED, Interruption.UNRESPONSIVE, Interruption.HARD_TIMEOUT})
_SILENCES = (Interruption.SOFT_TIMEOUT, Interruption.HARD_TIMEOUT)


class FailedInARow(msgspec.Struct, frozen=True):
    """How many iterations in a row have failed without progress, and which ranks failed in the last one."""

    in_a_row: int = 0
    members: frozenset[int] = frozenset()
    first: int = 0  # a member that failed in the last two

    @property
    def is_hopeless(self) -> bool:
        return self.in_a_row >= IN_A_ROW_MAX


def after(
    before: FailedInARow, members: frozenset[int], record: FaultRecord, settings: CallSettings, *, ran_s: float
) -> FailedInARow:
    """Counts an iteration in which `members` failed; it ran for `ran_s` until its first fault, `record`, was known."""
    if ran_s >= progress_s(record, settings):
        return FailedInARow(0, members)
    again = members & before.members
    return FailedInARow(before.in_a_row + 1, members, min(again)) if again else FailedInARow(1, members, min(members))


def blamed(faults: Mapping[int, Mapping[Interruption, FaultRecord]]) -> frozenset[int]:
    """Returns the members whose processes have ended, or are being ended, if any: they made the others raise."""
    lost = frozenset(member for member, told in faults.items() if not _LOST.isdisjoint(told))
    return lost or frozenset(faults)


def progress_s(record: FaultRecord, settings: CallSettings) -> float:
    """Returns how long an iteration must run to count as progress. A silence is noticed late, so its time is added."""
    if record.interruption in _SILENCES:
        return 2 * settings.soft_timeout_s
    return PROGRESS_S


def pause_s(failures: FailedInARow, settings: CallSettings) -> float:
    """Returns the delay of the next iteration. Every rank waits at the barrier meanwhile, within its timeout."""
    further = failures.in_a_row - AT_ONCE_MAX
    if further <= 0:
        return 0.0
    longest_s = min(PAUSE_MAX_S, settings.barrier_timeout_s / 4, settings.hard_timeout_s / 2)
    return min(PAUSE_MIN_S * 2.0 ** min(further - 1, 20), longest_s)
