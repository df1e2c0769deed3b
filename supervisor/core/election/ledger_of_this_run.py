"""Does a ledger that a new leader finds belong to this run of the job, or to an earlier run under the same id?"""

from __future__ import annotations

from supervisor.core.leader_ledger import Former, Ledger


def of_this_run(found: Ledger, *, term: int, met_term: int) -> tuple[Ledger, Former | None]:
    """Returns what the leader of `term` begins with, and how the previous run ended if this is a new run.

    `met_term`: term of the first leader that this process met; 0: none. If the process has met no leader of the run
    that ended, that run was another one, and the id is being reused. A node that missed the end begins nothing,
    whichever leader it has followed since: that leader may have missed the end too, as this one may have.
    """
    if not found.is_told or found.verdict is None:
        return found, None
    last_term = found.told_by or term - 1
    is_of_it = 0 < met_term <= last_term
    return (found, None) if is_of_it else (Ledger(), Former(found.verdict, last_term))
