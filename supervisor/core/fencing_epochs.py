"""Which epoch does a leader give to the cycles that it orders, so that fencing tokens grow?

The rank's client makes the token from the epoch, the cycle and the iteration of a wrapped call
(worker_client/fencing_tokens.py). An epoch is the time at which its leader was given the job. A leader that continues
the job gets a greater one than any that its nodes know, whatever its clock shows. So tokens never fall within a job.
From one run of a job to the next, they fall only if clocks are wrong by more than the time between the two.
"""

from __future__ import annotations


def next_epoch(newest_epoch: int, *, began_at_ms: int) -> int:
    """Returns the epoch of a leader; 0: unknown. `newest_epoch`: of the cycle that it takes over; 0: none, or unknown.

    `began_at_ms`: when the leader was given the job; 0: unknown.
    """
    return max(began_at_ms, newest_epoch + 1 if newest_epoch else 0)
