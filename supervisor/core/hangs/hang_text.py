"""Which sentences say what some ranks are doing, and which ranks wait for them?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NAMED_MAX = 4  # ranks; more are counted or written as ranges
CLAUSES_MAX = 3

_VERBS = {
    "are": ("is", "are"),
    "have": ("has", "have"),
    "wait": ("waits", "wait"),
    "compute": ("computes", "compute"),
    "hang": ("hangs", "hang"),
    "hold": ("holds", "hold"),
    "burn": ("burns", "burn"),
    "give": ("gives", "give"),
}


def subject(ranks: Sequence[int]) -> str:
    """Returns "rank 1", "ranks 0 and 2", "ranks 0-5 and 7"."""
    return f"rank{'' if len(ranks) == 1 else 's'} {_listed(ranks)}"


def counted(ranks: Sequence[int]) -> str:
    """Returns the same, but only counts many: "7 ranks"."""
    return subject(ranks) if len(ranks) <= NAMED_MAX else f"{len(ranks)} ranks"


def said_of(ranks: Sequence[int], clause: str, *, by_count: bool = False) -> str:
    """Returns a sentence about these ranks. `clause` has its verbs in braces: "{are} stopped (SIGSTOP)"."""
    text = clause
    for verb, forms in _VERBS.items():
        text = text.replace("{" + verb + "}", forms[len(ranks) != 1])
    return f"{counted(ranks) if by_count else subject(ranks)} {text}"


def listed_clauses(clauses: Iterable[str], link: str) -> str:
    """Joins at most CLAUSES_MAX of them and says how many more there are."""
    told = list(clauses)
    more = len(told) - CLAUSES_MAX
    return link.join(told[:CLAUSES_MAX]) + (f"; and {more} more cases" if more > 0 else "")


def _listed(ranks: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if len(ranks) > NAMED_MAX and parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
