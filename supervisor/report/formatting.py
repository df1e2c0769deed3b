"""How are durations, shares, moments and text from hostile ranks written for people?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from supervisor.core.node_ranges import node_ranges
from supervisor.core.printable import one_line

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def duration(seconds: float) -> str:
    """Returns 85 ms, 1.23 s, 12.3 s, 3 min 05 s, 2 h 14 min or 5 d 03 h: at most three digits below a minute."""
    seconds = max(seconds, 0.0)
    if 0.00005 <= seconds < 0.0095:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02} h"


def percent(share: float | None) -> str:
    """Returns the share in percent; never 100 % for less than all."""
    if share is None:
        return "-"
    if 0.9995 <= share < 1:
        return "99.9 %"
    return f"{share:.1%}".replace("%", " %")


def after(at_ns: int, began_ns: int) -> str:
    """Returns how long after the beginning: +1.23 s."""
    return f"+{duration((at_ns - began_ns) / 1e9)}"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def ranks(numbers: Sequence[int], *, most: int = 6) -> str:
    """Returns "rank 3", "ranks 3, 5", "ranks 0-7", "ranks 0-7, 9 and 12 more"."""
    if not numbers:
        return ""
    parts = list(_runs(sorted(set(numbers))))
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts[:most])
    more = sum(last - first + 1 for first, last in parts[most:])
    return f"rank{'' if len(set(numbers)) == 1 else 's'} {text}" + (f" and {more} more" if more else "")


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def nodes(names: Sequence[str]) -> str:
    """Returns the names in Slurm's notation: node[001-003]."""
    return node_ranges(names)


def plain(text: str) -> str:
    """Returns the text on one line, without terminal escape sequences and control characters."""
    return one_line(bare(text))


def bare(text: str) -> str:
    """Returns the text without terminal escape sequences. The last state of a progress bar stays."""
    return _ESCAPES.sub("", text)


def tick(seconds: float) -> str:
    """Returns the label of a round time on an axis: 0, 0.5 s, 30 s, 5 min, 2 h, 3 d."""
    for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size_s and seconds / size_s == int(seconds / size_s):
            return f"{int(seconds / size_s)} {unit}"
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:g} s" if seconds else "0"
