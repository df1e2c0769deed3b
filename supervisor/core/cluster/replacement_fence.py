"""From when on may a new leader replace nodes that have not reported to it?

A part of the take-over (leader_takeover.py): fence_times.py has the rules, the reports and the ledger what they need.
"""

from __future__ import annotations

from supervisor.core import fence_times
from supervisor.core.cluster import inherited_cycle
from supervisor.core.cluster.coordinator_states import TakingOver
from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.leader_ledger import Ledger

KEPT_S = 900.0  # for so long at least, the ledger stays after the job's end


def from_s(ledger: Ledger, phase: TakingOver) -> float | None:
    """Returns from when; None: it must meet a witness first. At least one node has reported."""
    if phase.stop is not None:
        return phase.until_s  # The job ends, so nothing new begins.
    if phase.beyond:  # The ledger was lost or is older, but the leader of that cycle heard its nodes.
        newest = max(phase.stands[node].cycle for node in phase.beyond)
        began_s, ran = phase.until_s - TAKE_OVER_S, [n for n in phase.beyond if phase.stands[n].cycle == newest]
        is_sure = (
            len(phase.stands) <= fence_times.WITNESSES_MAX and began_s - max(phase.left_at_s[n] for n in ran) < KEPT_S
        )
        if not is_sure and not inherited_cycle.is_at_work(phase.stands):
            return None  # It may have been deleted some minutes after the job's end.
        return fence_times.replaces_from_s(phase.until_s, ran, phase.left_at_s)
    is_alone = phase.missing.keys() == {ledger.leader}  # only its node is missing
    if is_alone and (sooner_s := _unheard_from_s(ledger, phase)) is not None:
        return sooner_s
    ends = ledger.verdict is not None or ledger.stop_signal is not None  # Then nothing new begins.
    witnesses = () if ends else ledger.witnesses
    alone = [node for node, each in phase.stands.items() if each.left == ledger.leader] if is_alone else ()
    return fence_times.replaces_from_s(phase.until_s, witnesses, phase.left_at_s, left_alone=alone)


def _unheard_from_s(ledger: Ledger, phase: TakingOver) -> float | None:
    """Returns from when the workers of the last leader have ended, since no node confirms its heartbeats any more.

    None: that is not known. Only its node is missing of those of the cycle.
    """
    names = fence_times.confirmers(ledger.parts, ledger.leader, ledger.vacant)
    if not (names and ledger.is_running and ledger.term == phase.previous_term):
        return None
    stands = [phase.stands[each] for each in names]
    if not all((each.left_term, each.heard_cycle) == (ledger.term, ledger.cycle) for each in stands):
        return None
    began_s = phase.until_s - TAKE_OVER_S
    return max(began_s + fence_times.UNHEARD_S, *(phase.heard_at_s[each] + fence_times.ALONE_S for each in names))
