"""Which sentences say that some ranks are slow, and that they no longer are?"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.node_ranges import rank_ranges
from supervisor.core.stragglers.straggler_messages import Straggler


def found_sentence(section: str, node: str, ranks: Sequence[int], took_s: float, median_s: float, of_ranks: int) -> str:
    """Returns "rank 3 on node n1 is slow in section 'forward': 0.31 s each time, 1.5 times the median of 8 ranks …"."""
    who = _who(node, ranks)
    return (
        f"{who} slow in section {section!r}: {_seconds(took_s)} each time, "
        f"{took_s / median_s:.2f} times {_against(of_ranks)} ({_seconds(median_s)})"
    )


def gone_sentence(named: Straggler, why: str) -> str:
    return f"{_who(named.node, named.ranks)} no longer slow in section {named.section!r}: {why}"


def well_again(ratio: float, of_ranks: int) -> str:
    return f"{ratio:.2f} times {_against(of_ranks)}"


def _against(of_ranks: int) -> str:
    return "the other rank" if of_ranks == 2 else f"the median of {of_ranks} ranks"


def _who(node: str, ranks: Sequence[int]) -> str:
    """Returns the subject with its verb."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} on node {node} is"
    return f"node {node} (ranks {written(ranks)}) is"


def written(ranks: Sequence[int]) -> str:
    """Returns the ranks as ranges: 0-7,9."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return rank_ranges(parts)


def _seconds(value_s: float) -> str:
    return f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s:.3g} s"
