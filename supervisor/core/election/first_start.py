"""If a backend has no ledger of a job, may nodes train all the same?

Yes, if it has lost its data, or was restored from a backup older than the job. But such nodes soon ask for the lead, or
end their workers. So none trains if the backend has held its data for long enough and nobody has led the job since.
"""

from __future__ import annotations

# A node asks for the lead at once, or 10 s after it gave one up (candidate.STANDS_AGAIN_S), and again if a call fails;
# workers whose leader is gone end within 5 s; another address of the backend may be looked up only every 10 s.
HELD_S = 30.0


def may_train(held_for_s: float) -> bool:
    """Returns whether other nodes may train although the backend does not know of them.

    `held_for_s`: for so long at least, the backend has lost nothing, and nobody has led; 0.0: not known.
    """
    return held_for_s < HELD_S
