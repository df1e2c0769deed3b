"""Logs of cycles, each with the label of a person who knows the cause."""

from __future__ import annotations

from pathlib import Path

import msgspec

HERE = Path(__file__).parent


class Labelled(msgspec.Struct, frozen=True):
    """`kind` "" and advice CONTINUE: nothing was wrong so far."""

    name: str
    kind: str
    culprits: tuple[int, ...]
    advice: str
    lines: tuple[str, ...]


def read(name: str) -> list[Labelled]:
    found: list[Labelled] = []
    for block in (HERE / name).read_text().split("=== ")[1:]:
        head, _, text = block.partition("\n")
        title, kind, ranks, advice = (part.strip() for part in head.split("|"))
        culprits = tuple(int(rank) for rank in ranks.split(",") if rank)
        found.append(Labelled(title, kind, culprits, advice, tuple(text.splitlines())))
    return found
