"""Which rank keeps which others waiting?

Pure. The coordinator uses this, because it has the facts of all ranks on all nodes. Findings that are certain by
themselves (a stopped process, a held GIL) rank before conclusions from other ranks: which rank is missing in the
collective that they wait in, and which waits in a different one. If nothing follows, the verdict says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from supervisor.core.facts import Evidence
from supervisor.core.hangs.hang_text import counted, listed_clauses, said_of, subject
from supervisor.core.hangs.hung_rank_diagnosis import Pattern, RankFinding, find
from supervisor.core.process_facts import Frame, RankFacts

# Explain a hang without regard to other ranks.
CERTAIN = frozenset(
    {
        Pattern.STOPPED, Pattern.TRACED, Pattern.ZOMBIE, Pattern.STATE_D, Pattern.GIL_HELD, Pattern.CHILD_DEAD,
    }
)  # fmt: skip


class HangVerdict(msgspec.Struct, frozen=True):
    """The verdict on a hang. `culprits` empty: unknown, and `sentence` says so."""

    pattern: Pattern
    sentence: str
    culprits: tuple[int, ...] = ()
    waiters: tuple[int, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    """Ranks with the same finding."""

    finding: RankFinding
    ranks: tuple[int, ...]


def judge(evidence: Evidence, *, silent: Iterable[int] = ()) -> HangVerdict | None:
    """Returns the verdict; None if nothing is known. `silent`: silent ranks in addition to those in the facts."""
    facts = _facts_of_all(evidence, set(silent))
    frames = _frames_by_rank(evidence)
    if not frames and not any(each.process is not None for each in facts):
        return None
    findings = {each.rank: find(each, frames.get(each.rank, ())) for each in facts}
    waiters = tuple(rank for rank, each in findings.items() if each.pattern is Pattern.WAITS)
    certain = _grouped(findings, lambda each: each.pattern in CERTAIN)
    if certain:
        return _blamed(certain, waiters, findings)
    others = _grouped(findings, lambda each: each.pattern is not Pattern.WAITS)
    known = [group for group in others if group.finding.pattern is not Pattern.UNKNOWN]
    if waiters and known:
        return _blamed(known, waiters, findings)
    if waiters:
        return _among_waiters(_grouped(findings, lambda each: each.pattern is Pattern.WAITS), others)
    return _without_waiters(known, facts, findings)


# --- verdicts ------------------------------------------------------------------------------------------------------


def _blamed(groups: list[_Group], waiters: tuple[int, ...], findings: Mapping[int, RankFinding]) -> HangVerdict:
    culprits = tuple(sorted(rank for group in groups for rank in group.ranks))
    pattern = groups[0].finding.pattern
    if not waiters:
        return HangVerdict(pattern, _clauses(groups, "; "), culprits)
    calls = " and ".join(dict.fromkeys(findings[rank].call for rank in waiters))
    waits = "waits" if len(waiters) == 1 else "wait"
    if all(group.finding.pattern is Pattern.ELSEWHERE for group in groups):
        sentence = f"{_clauses(groups, ' and ')} while {counted(waiters)} {waits} in {calls}"
    else:
        whom = "it" if len(culprits) == 1 else "them"
        sentence = f"{_clauses(groups, '; ')}; {counted(waiters)} {waits} for {whom} in {calls}"
    return HangVerdict(pattern, sentence, culprits, waiters)


def _among_waiters(groups: list[_Group], unknown: list[_Group]) -> HangVerdict:
    """Judges if all ranks of which anything is known wait."""
    waiters = tuple(sorted(rank for group in groups for rank in group.ranks))
    if unknown:
        which = subject(tuple(sorted(rank for group in unknown for rank in group.ranks)))
        text = ", while ".join(_waiting(group) for group in groups)
        return HangVerdict(Pattern.UNKNOWN, f"{text}; what {which} does is unknown: no stack arrived", (), waiters)
    if len(groups) == 1:
        (group,) = groups
        if len(group.ranks) == 1:
            return HangVerdict(Pattern.ALL_WAIT, f"{_waiting(group)}; it is unknown for whom", (), waiters)
        text = f"all {len(waiters)} ranks wait in {group.finding.call}, called from {group.finding.place}"
        why = "it is unknown which of them holds up the others; check the network and the shapes that they pass"
        return HangVerdict(Pattern.ALL_WAIT, f"{text}; {why}", (), waiters)
    text = listed_clauses((_waiting(group) for group in groups), ", while ")
    fewest, next_fewest = len(groups[0].ranks), len(groups[1].ranks)
    culprits = groups[0].ranks if fewest < next_fewest else ()
    others = tuple(rank for rank in waiters if rank not in culprits)
    return HangVerdict(Pattern.MISMATCH, f"the collectives do not match: {text}", culprits, others)


def _without_waiters(
    known: list[_Group], facts: tuple[RankFacts, ...], findings: Mapping[int, RankFinding]
) -> HangVerdict:
    """Judges if no rank visibly waits for another: then the silent ranks hang by themselves."""
    silent = {each.rank for each in facts if each.is_silent}
    crowd = next((group for group in known if 2 * len(silent.intersection(group.ranks)) > len(facts)), None)
    if crowd is not None and len(known) > 1:
        return _odd_ones(crowd, [group for group in known if group is not crowd])
    stand = [
        _Group(group.finding, tuple(rank for rank in group.ranks if rank in silent))
        for group in known
        if group.finding.pattern is not Pattern.LEFT_EARLY
    ]
    stand = [group for group in stand if group.ranks]
    unseen = tuple(sorted(rank for rank in silent if findings[rank].pattern is Pattern.UNKNOWN))
    clauses = [said_of(group.ranks, group.finding.clause) for group in stand]
    clauses += [said_of(unseen, findings[unseen[0]].clause)] if unseen else []
    if not clauses:
        return HangVerdict(Pattern.UNKNOWN, "which rank hangs is unknown: no rank was seen where it hangs")
    culprits = tuple(sorted({rank for group in stand for rank in group.ranks} | set(unseen)))
    text = listed_clauses(clauses, "; ")
    if len(culprits) == len(facts) > 1 and len(clauses) > 1:
        return HangVerdict(Pattern.UNKNOWN, f"{text}; it is unknown which of them holds up the others")
    return HangVerdict(stand[0].finding.pattern if stand else Pattern.UNKNOWN, text, culprits)


def _odd_ones(crowd: _Group, odd: list[_Group]) -> HangVerdict:
    """Judges if most ranks are silent at one unnamed place, and the others are elsewhere."""
    culprits = tuple(sorted(rank for group in odd for rank in group.ranks))
    most = said_of(crowd.ranks, crowd.finding.clause, by_count=True)
    sentence = f"{_clauses(odd, ' and ')} while {most}"
    return HangVerdict(odd[0].finding.pattern, sentence, culprits, crowd.ranks)


def _clauses(groups: list[_Group], link: str) -> str:
    return listed_clauses((said_of(group.ranks, group.finding.clause) for group in groups), link)


def _waiting(group: _Group) -> str:
    where = f", called from {group.finding.place}"
    return said_of(group.ranks, f"{{wait}} in {group.finding.call}{where}", by_count=True)


# --- facts ---------------------------------------------------------------------------------------------------------


def _facts_of_all(evidence: Evidence, silent: set[int]) -> tuple[RankFacts, ...]:
    """Returns the facts of each rank of which anything is known, in order."""
    known = {each.rank: each for each in evidence.facts}
    for rank in {rank for group in evidence.groups for rank in group.ranks} | silent:
        known.setdefault(rank, RankFacts(rank))
    return tuple(
        msgspec.structs.replace(each, is_silent=each.is_silent or rank in silent)
        for rank, each in sorted(known.items())
    )


def _frames_by_rank(evidence: Evidence) -> dict[int, tuple[Frame, ...]]:
    return {rank: group.frames for group in evidence.groups if group.frames for rank in group.ranks}


def _grouped(findings: Mapping[int, RankFinding], wanted: Callable[[RankFinding], bool]) -> list[_Group]:
    """Groups ranks by finding, the smallest groups first."""
    together: dict[RankFinding, list[int]] = {}
    for rank, finding in findings.items():
        if wanted(finding):
            together.setdefault(finding, []).append(rank)
    groups = [_Group(finding, tuple(sorted(ranks))) for finding, ranks in together.items()]
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))
