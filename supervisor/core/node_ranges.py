"""How are many node names written as one word, in Slurm's notation: node[001-003,007]?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBERED = re.compile(r"(.*?)(\d{1,15})(\D*)", re.DOTALL)


def sorted_names(names: Iterable[str]) -> list[str]:
    """Returns the names in the order in which `node_ranges` writes them: node2 before node10."""
    return sorted(set(names), key=_key)


def node_ranges(names: Iterable[str]) -> str:
    """Returns the names as ranges, each once. Numbers of different widths (node9, node010) stay apart, as in Slurm."""
    words: list[str] = []
    group: list[str] = []
    for name in sorted_names(names):
        if group and _family(name) != _family(group[0]):
            words.append(_folded(group))
            group = []
        group.append(name)
    if group:
        words.append(_folded(group))
    return ",".join(words)


def rank_ranges(parts: Sequence[Sequence[int]]) -> str:
    """Returns the ranks of each node, in the order of the nodes: 0-7,8-15."""
    return ",".join(_range(min(part), max(part)) for part in parts if part)


def _family(name: str) -> tuple[str, int, str]:
    """Returns a name's family and number: names of a family differ only in one number of the same width."""
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return name, 0, ""
    return found[1], len(found[2]), found[3]


def _key(name: str) -> tuple[str, str, int, int, str]:
    prefix, width, suffix = _family(name)
    return prefix, suffix, width, _number(name), name


def _number(name: str) -> int:
    found = _NUMBERED.fullmatch(name)
    return int(found[2]) if found is not None else 0


def _folded(group: Sequence[str]) -> str:
    prefix, width, suffix = _family(group[0])
    if len(group) == 1 or not width:
        return group[0]
    ranges: list[tuple[int, int]] = []
    for number in map(_number, group):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return f"{prefix}[{','.join(_range(first, last, width) for first, last in ranges)}]{suffix}"


def _range(first: int, last: int, width: int = 1) -> str:
    return f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
