"""Why did this cycle end, which ranks caused it, and is another try worth it? Judged by the cycle's log only.

Rules decide, not a model: the sign that explains most counts, and among equals the first. A mere consequence of another
rank's end is named as such, and the silent rank is suspected. While the cycle runs, anything that a rank survives is
not a fault. Once it has ended, this no longer applies, because lines printed before a rank's end may follow it in the
log. Each step costs one look at one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from supervisor.core.attribution.log_patterns import (
    ABOUT_NUMBERS,
    PROGRAM_XIDS,
    RECORDING_XIDS,
    SIGNS,
    Advice,
    Sign,
    Weight,
    is_worth_a_look,
)
from supervisor.core.attribution.tracebacks import (
    RANKS_MAX,
    REFUSAL,
    SYNTAX_ERRORS,
    Raised,
    Tracebacks,
    without_numbers,
)
from supervisor.core.attribution.training_progress import Progress

ALIKE_CYCLES = 3  # if so many cycles, with this one, end alike, another try would too
_OF_THE_PROGRAM = (Weight.RESOURCE, Weight.ERROR, Weight.NUMBERS)
LINE_CHARACTERS_MAX = 2_000  # examined; the rest of a line adds nothing
QUOTED_CHARACTERS_MAX = 300
FINDINGS_MAX = 10
# Errors that the next try repeats if every rank made them: only a change to the program helps.
LASTING_ERRORS = (*SYNTAX_ERRORS, REFUSAL, "ImportError", "NameError", "UnboundLocalError")
MISSING_ERRORS = (
    "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "PermissionError", "ModuleNotFoundError",
)  # fmt: skip
_MISSING = re.compile(r"No such file or directory|does not appear to have a file named")
_LASTING = re.compile(r"^RuntimeError at .*: Error\(s\) in loading state_dict")
_REPORTED_NUMBER = re.compile(r"loss|norm", re.IGNORECASE)
_PREFIX = re.compile(r" *(\d+): ?")
_TORCH_PREFIX = re.compile(r"\[(?P<kind>rank|default)(?P<rank>\d+)\]:? ?")


class LogFinding(msgspec.Struct, frozen=True):
    kind: str
    says: str
    ranks: tuple[int, ...]  # that showed it; empty if the line names no rank
    line_number: int  # of the first line that shows it, from 1
    line: str
    signature: str  # equal where two cycles failed alike
    is_echo: bool = False


class Judgement(msgspec.Struct, frozen=True):
    """The judgement on a cycle. `culprits`: the ranks that began the failure, as far as known."""

    advice: Advice
    reason: str
    culprits: tuple[int, ...] = ()
    findings: tuple[LogFinding, ...] = ()  # the cause first
    signature: str = ""


class Seen(msgspec.Struct):
    sign: Sign
    detail: str
    number: int
    line: str
    last_number: int
    last_of_rank: dict[int, int]  # the line in which each rank showed it last
    accused: set[int]


def analyse(lines: Iterable[str], *, earlier: Sequence[str] = (), has_ended: bool = True) -> Judgement:
    """Judges a whole log. `lines`: as in the cycle's log, each after its rank. `earlier`: the signatures of earlier
    cycles, the newest last. `has_ended`: no more lines will come.
    """
    analysis = Analysis()
    for line in lines:
        analysis.take(line)
    return analysis.judgement(earlier=earlier, has_ended=has_ended)


class Analysis:
    """Analyses a log that may still grow: takes it line by line and may be asked at any time."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self.tracebacks = Tracebacks()
        self.progress = Progress()
        self.ranks_with_numbers: set[int] = set()  # that print a loss or a norm
        self.seen: dict[str, Seen] = {}
        self.lines = 0

    def judgement(self, *, earlier: Sequence[str] = (), has_ended: bool = True) -> Judgement:
        return _judge(self, earlier, has_ended)

    def take(self, line: str) -> None:
        self.lines = number = self.lines + 1
        rank, text = _split(line[:LINE_CHARACTERS_MAX])
        if rank is not None:
            self.ranks.add(rank)
            if rank not in self.ranks_with_numbers and _REPORTED_NUMBER.search(text):
                self.ranks_with_numbers.add(rank)
        self.tracebacks.take(rank, text, number)
        self.progress.take(rank, text, number)
        if not is_worth_a_look(text):
            return
        for sign in SIGNS:
            if (detail := sign.found_in(text)) is not None:
                self._note(sign, detail, rank, number, text)
                return

    def _note(self, sign: Sign, detail: str, rank: int | None, number: int, text: str) -> None:
        if sign.kind == "xid" and detail in RECORDING_XIDS:
            return
        seen = self.seen.get(sign.kind)
        if seen is None:
            quoted = text.strip()[:QUOTED_CHARACTERS_MAX]
            seen = self.seen[sign.kind] = Seen(sign, detail, number, quoted, number, {}, set())
        seen.last_number = number
        seen.accused.update(each for each in sign.accused_in(text, rank) if each < RANKS_MAX)
        if rank is not None:
            seen.last_of_rank[rank] = number


def _split(line: str) -> tuple[int | None, str]:
    """Returns the rank before a line, and the line.

    torch puts prefixes of its own in front of errors: a local rank, and the rank in each process group that was made,
    that of the newest first. A log may show any number as a rank; those from RANKS_MAX on are ignored.
    """
    rank: int | None = None
    text = line.rstrip("\r\n")
    if (prefix := _PREFIX.match(text)) and int(prefix[1]) < RANKS_MAX:
        rank, text = int(prefix[1]), text[prefix.end() :]
    local_rank: int | None = None
    while (prefix := _TORCH_PREFIX.match(text)) and (named := int(prefix["rank"])) < RANKS_MAX:
        if prefix["kind"] == "rank":
            rank = named if rank is None else rank
        else:
            local_rank = named if local_rank is None else local_rank
        text = text[prefix.end() :]
    return local_rank if rank is None else rank, text


def _judge(analysis: Analysis, earlier: Sequence[str], has_ended: bool) -> Judgement:
    found = sorted(_findings(analysis, has_ended=has_ended), key=lambda pair: (pair[0], pair[1].line_number))
    findings = tuple(finding for _, finding in found[:FINDINGS_MAX])
    if not findings:
        if not has_ended:
            return Judgement(Advice.CONTINUE, "no sign of a fault so far")
        return Judgement(Advice.UNKNOWN, "no sign of a fault in the log")
    cause = findings[0]
    culprits = _culprits(cause, analysis)
    reason = _sentence(cause, culprits)
    advice = _advice(cause, analysis)
    signature = cause.signature
    if found[0][0] not in _OF_THE_PROGRAM:  # Three lost nodes look alike, and say nothing about the next attempt.
        signature = f"{signature} of ranks {', '.join(map(str, culprits))}" if culprits else ""
    alike = 1 + _run_length(earlier, signature)
    if signature and alike >= ALIKE_CYCLES and advice is not Advice.STOP:
        return Judgement(Advice.STOP, f"{alike} cycles in a row ended alike: {reason}", culprits, findings, signature)
    return Judgement(advice, reason, culprits, findings, signature)


def _findings(analysis: Analysis, *, has_ended: bool) -> list[tuple[Weight, LogFinding]]:
    progress = analysis.progress
    found = [
        (_weight(seen), _from_sign(seen))
        for seen in analysis.seen.values()
        if has_ended or not _is_survived(seen, progress)
    ]
    groups: dict[str, list[tuple[int | None, Raised]]] = {}
    for rank, raised in analysis.tracebacks.raised.items():
        if has_ended or not progress.goes_on(rank, raised.line_number):
            groups.setdefault(raised.signature, []).append((rank, raised))
    shown = {each.number for each in analysis.seen.values()}
    for signature, members in groups.items():
        if any(raised.line_number in shown for _, raised in members):
            continue  # A sign says what it was.
        if _is_told_by_a_sign(members[0][1], analysis):
            continue
        found.append((Weight.ERROR, _from_tracebacks(signature, members)))
    return found


def _is_survived(seen: Seen, progress: Progress) -> bool:
    """Returns whether any rank continued after it: broken numbers, timeouts and lost peers concern all ranks."""
    if seen.sign.weight >= Weight.NUMBERS or not seen.last_of_rank:
        return progress.anyone_goes_on(seen.last_number)
    return all(progress.goes_on(rank, number) for rank, number in seen.last_of_rank.items())


def _is_told_by_a_sign(raised: Raised, analysis: Analysis) -> bool:
    """Returns whether its text was noted earlier, for another rank or in another line."""
    text = f"{raised.kind}: {raised.message}"
    if "nan" in analysis.seen and ABOUT_NUMBERS.search(text):
        return True
    return any(sign.kind in analysis.seen and sign.found_in(text) is not None for sign in SIGNS)


def _weight(seen: Seen) -> Weight:
    is_programs_own = seen.sign.kind == "xid" and seen.detail in PROGRAM_XIDS
    return Weight.ERROR if is_programs_own else seen.sign.weight


def _from_sign(seen: Seen) -> LogFinding:
    says = seen.sign.means.format(seen.detail)
    ranks = tuple(sorted(seen.last_of_rank))
    is_echo = seen.sign.weight is Weight.ECHO
    signature = f"{seen.sign.kind}: {without_numbers(says)}" if seen.sign.kind != "xid" else says
    return LogFinding(seen.sign.kind, says, ranks, seen.number, seen.line, signature, is_echo)


def _from_tracebacks(signature: str, members: list[tuple[int | None, Raised]]) -> LogFinding:
    first = min((raised for _, raised in members), key=lambda raised: raised.line_number)
    ranks = tuple(sorted(rank for rank, _ in members if rank is not None))
    line = f"{first.kind}: {first.message}" if first.message else first.kind
    says = f"{line[:QUOTED_CHARACTERS_MAX]}{f' at {first.place}' if first.place else ''}"
    kind = "missing_file" if first.kind in MISSING_ERRORS or _MISSING.search(first.message) else "exception"
    return LogFinding(kind, says, ranks, first.line_number, line[:QUOTED_CHARACTERS_MAX], signature)


def _advice(cause: LogFinding, analysis: Analysis) -> Advice:
    if cause.kind not in ("exception", "missing_file"):
        return next(sign.advice for sign in SIGNS if sign.kind == cause.kind)
    # A rank that alone has printed may be the only one that failed: the others were stopped in silence.
    is_everywhere = len(cause.ranks) > 1 and set(cause.ranks) == analysis.ranks
    is_lasting = (
        cause.kind == "missing_file"
        or cause.signature.startswith(tuple(f"{each} " for each in LASTING_ERRORS))
        or _LASTING.match(cause.signature) is not None
    )
    return Advice.STOP if is_everywhere and is_lasting else Advice.RESTART


def _culprits(cause: LogFinding, analysis: Analysis) -> tuple[int, ...]:
    """Returns the ranks that began it; a rank that waited in vain did not."""
    seen = analysis.seen.get(cause.kind)
    if seen is not None and seen.accused:
        return tuple(sorted(seen.accused))
    if cause.kind == "nan" and _is_of_all(cause, analysis):
        return ()
    if cause.kind == "stacks" and len(cause.ranks) > 1 and set(cause.ranks) == analysis.ranks:
        return ()
    if not cause.is_echo and cause.kind not in ("collective_timeout", "network"):
        return cause.ranks
    silent = _all_ranks(analysis.ranks) - set(cause.ranks)
    if silent and len(silent) <= len(cause.ranks):
        return tuple(sorted(silent))
    return cause.ranks if cause.kind == "network" else ()


def _is_of_all(cause: LogFinding, analysis: Analysis) -> bool:
    """Returns whether the only rank that reports numbers reports broken ones, which are then a mean over all ranks."""
    return (
        len(cause.ranks) == 1
        and set(cause.ranks) == analysis.ranks_with_numbers
        and _REPORTED_NUMBER.search(cause.says) is not None
    )


def _all_ranks(printed: set[int]) -> set[int]:
    """Returns all ranks, including those in between that never printed a line."""
    if not printed or max(printed) >= RANKS_MAX:
        return printed
    return set(range(min(printed), max(printed) + 1))


def _sentence(cause: LogFinding, culprits: tuple[int, ...]) -> str:
    if culprits == cause.ranks:
        return f"{_named(culprits)}: {cause.says}" if culprits else cause.says
    others = f"{_named(cause.ranks)}: {cause.says}"
    if not culprits:
        return f"{others}; the log does not show which rank began it"
    return f"{others}; {_named(culprits)} {'does' if len(culprits) == 1 else 'do'} not say so, and probably began it"


def _named(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "some rank"
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _run_length(earlier: Sequence[str], signature: str) -> int:
    """Returns how many of the last cycles in a row had this signature."""
    length = 0
    for each in reversed(earlier):
        if each != signature:
            break
        length += 1
    return length
