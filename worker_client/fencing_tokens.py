"""Which group of ranks does this process belong to, as a number that is greater for each later group?

The token consists of the epoch of the leader that has started the cycle (supervisor/core/fencing_epochs.py), the cycle,
and the call and iteration of the Wrapper. It fits into a signed 64-bit number until the year 2248.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast_wire.private_supervisor import CYCLE_VARIABLE

EPOCH_VARIABLE = "HOLDFAST_FENCING_EPOCH"  # 0 or missing: no supervisor fences this process

CALL_ONE = 1 << 6  # also the number of iterations of a call that have tokens of their own
CYCLE_ONE = 1 << 11
EPOCH_ONE = 1 << 20
CALLS_MAX = CYCLE_ONE // CALL_ONE

_iteration = (0, 0)  # (call, iteration) of the Wrapper; calls count from 1


def fencing_token() -> int:
    """Returns a number that grows with each restart of the job, and never falls: pass it on to whatever you write to.

    All ranks that train together have the same. A store that remembers the greatest token it was given, and refuses
    smaller ones, takes nothing from ranks that were replaced. Returns 0 in a process that no supervisor has started.
    """
    return token(os.environ)


def token(environment: Mapping[str, str]) -> int:
    epoch, cycle = environment.get(EPOCH_VARIABLE, ""), environment.get(CYCLE_VARIABLE, "")
    if not epoch.isdecimal() or not cycle.isdecimal() or not int(epoch):
        return 0
    # Many cycles carry into the epoch, and the last calls and iterations share a token: the order stays.
    return int(epoch) * EPOCH_ONE + int(cycle) * CYCLE_ONE + _of_iteration()


def epoch_of(token: int) -> int:
    return token // EPOCH_ONE


def iteration() -> tuple[int, int]:
    """Returns the Wrapper's call and iteration in which this process is, or was last; (0, 0): in none yet."""
    return _iteration


def begin_iteration(call: int, iteration: int) -> None:
    """Notes that the Wrapper begins an iteration: what was begun in an earlier one may be committed no more."""
    global _iteration
    _iteration = call, iteration


def _of_iteration() -> int:
    call, iteration = _iteration
    if call >= CALLS_MAX:
        return CYCLE_ONE - 1
    return call * CALL_ONE + min(iteration, CALL_ONE - 1)
