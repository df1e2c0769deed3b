"""How often are the rules right about labelled logs? Precision and recall, by kind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core.attribution.log_verdict import Judgement, analyse
from tests.core.attribution.labelled import Labelled


class Share(msgspec.Struct):
    """`said`: how often the rules said it; `true`: how often a person does; `both`: how often both agree."""

    said: int = 0
    true: int = 0
    both: int = 0

    def add(self, said: object, true: object, *, agrees: bool) -> None:
        self.said += bool(said)
        self.true += bool(true)
        self.both += bool(said and true and agrees)


class Measured(msgspec.Struct):
    kinds: dict[str, Share]
    cause: Share
    culprits: Share
    stop: Share
    harmless_at_end: Share  # nothing is wrong; asked only after the end


def judged(log: Labelled) -> Judgement:
    """Judges a log; one that ends in nothing is asked about while it grows."""
    return analyse(log.lines, has_ended=log.advice != "CONTINUE")


def kind_of(judgement: Judgement) -> str:
    return judgement.findings[0].kind if judgement.findings else ""


def measure(logs: Sequence[Labelled]) -> Measured:
    """Counts culprits as right if they are exactly those of the label."""
    measured = Measured({log.kind: Share() for log in logs}, Share(), Share(), Share(), Share())
    for log in logs:
        found = judged(log)
        kind = kind_of(found)
        for each, share in measured.kinds.items():
            share.add(kind == each, log.kind == each, agrees=True)
        measured.cause.add(kind, log.kind, agrees=kind == log.kind)
        measured.culprits.add(found.culprits, log.culprits, agrees=found.culprits == log.culprits)
        at_end = analyse(log.lines)
        measured.harmless_at_end.add(not at_end.findings, not log.kind, agrees=True)
        measured.stop.add(found.advice == "STOP", log.advice == "STOP", agrees=True)
    return measured


def table_rows(measured: Measured) -> list[str]:
    """Returns the documentation's rows: what, how many logs, precision, recall."""
    kinds = sorted(measured.kinds.items(), key=lambda item: (not item[0], -item[1].true, item[0]))
    rows = [(f"`{kind}`" if kind else "nothing is wrong", share) for kind, share in kinds]
    rows += [
        ("nothing is wrong, asked after the end", measured.harmless_at_end),
        ("all causes", measured.cause),
        ("culprits", measured.culprits),
        ("advice STOP", measured.stop),
    ]
    return [
        f"| {name} | {share.true} | {_cell(share.both, share.said)} | {_cell(share.both, share.true)} |"
        for name, share in rows
    ]


def _cell(part: int, whole: int) -> str:
    return f"{part}/{whole}" if whole else "-"
