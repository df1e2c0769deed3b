"""What does the web page show of each rank: state, silence against its limit, open sections? Pure."""

from __future__ import annotations

from supervisor.cli.top_view import rows
from supervisor.ports.reports import JobReport, RankReport

RANKS_MAX = 256  # of one job: those that are worth a look, then the most silent ones


def ranks_document(report: JobReport, *, now_ns: int, aged_s: float, every_s: float) -> dict[str, object]:
    """Returns what is pushed after a look that was `aged_s` ago; the next one follows `every_s` after it.

    The page lets the age of a rank advance between two looks only if the rank was already silent at the look before.
    """
    shown = list(report.ranks)
    if len(shown) > RANKS_MAX:
        shown = sorted(shown, key=lambda rank: (not rows.is_urgent(rank), -rows.silent_share(rank), rank.rank))
    return {
        "aged_s": round(aged_s, 3),
        "every_s": round(every_s, 3),
        "ranks": [_rank(rank, now_ns) for rank in sorted(shown[:RANKS_MAX], key=lambda rank: rank.rank)],
        "left_out": max(0, len(shown) - RANKS_MAX),
    }


def _rank(rank: RankReport, now_ns: int) -> dict[str, object]:
    age_s, limit_s = rows.age_and_limit(rank)
    return {
        "rank": rank.rank,
        "state": rows.state_of(rank),
        "is_odd": rank.state in rows.ODD_STATES,
        "node": rank.node,
        "pid": rank.pid,
        "runs_s": None if rank.cycle_started_at_ns is None else (now_ns - rank.cycle_started_at_ns) / 1e9,
        "age_s": age_s,
        "limit_s": limit_s,
        "sections": [{"name": each.name, "age_s": each.age_s, "limit_s": each.limit_s} for each in rank.sections],
    }
