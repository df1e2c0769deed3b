"""How are the last reports of a job's nodes merged into one?

Pure functions of known data. A lost node keeps its place in the list, with its last report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from supervisor.core.cluster.status_view import Roster, RosterNode
from supervisor.core.facts import JobState
from supervisor.core.node.script_seen import NO_SIGN
from supervisor.core.node_check_facts import Health
from supervisor.ports.reports import CheckReport, JobNodeReport, JobReport, NodeReport, RankReport, SectionReport

HEALTHY_CHECKS_NODES_MAX = 64  # on more nodes, healthy checks are not shown
NOBODY: Mapping[str, int] = {}
OVER = ("exited", "failed", "stopped")  # a rank in such a state has ages that no longer grow


class Known(msgspec.Struct, frozen=True):
    """The known data of one node."""

    part: JobReport
    node: NodeReport
    heard_at_ns: int
    answers: bool = True  # it was heard just now
    lost_at_ns: int | None = None
    lost_reason: str = ""


def merged(
    own: JobReport, roster: Roster, known: Mapping[str, Known], *, now_ns: int, unheard: Mapping[str, int] = NOBODY
) -> JobReport:
    """Returns the whole job. `own` is the leader's part: values common to all nodes come from it.

    `unheard`: nodes that were asked and never heard, as after this supervisor's return, and since when (Unix ns).
    """
    ended = own.state.has_ended
    heard = (each.part for each in known.values() if each.answers and each.lost_at_ns is None)
    only_bad = len(roster.nodes) > HEALTHY_CHECKS_NODES_MAX
    state, reason = (own.state, own.reason) if ended else _state(own, roster, known)
    if lacking := "" if ended else _lacking(roster, unheard):
        reason = f"{reason}; {lacking}" if reason else lacking
    return msgspec.structs.replace(
        own,
        state=state,
        reason=reason,
        cycle=max(roster.cycle, 0),
        nodes=tuple(
            _node(each, known.get(each.name), unheard.get(each.name), only_bad=only_bad) for each in roster.nodes
        ),
        ranks=_ranks(roster, known, now_ns),
        script="" if ended else _script((own, *heard), max(roster.cycle, 0)),
    )


def apart(report: JobReport, *, own: JobReport, heard_at_ns: int, now_ns: int) -> JobReport:
    """Returns the whole job as last heard, with this node's current part. For times without a leader."""
    age_s = max(0.0, (now_ns - heard_at_ns) / 1e9)
    mine = {rank.rank: rank for rank in own.ranks}
    ranks = {rank.rank: _aged(rank, age_s) for rank in report.ranks} | mine
    names = {each.name for each in own.nodes}  # A spare runs no ranks.
    nodes = tuple(
        each if each.name in names or each.lost_at_ns is not None
        else msgspec.structs.replace(each, heard_at_ns=each.heard_at_ns or heard_at_ns)
        for each in report.nodes
    )  # fmt: skip
    return msgspec.structs.replace(
        own,
        cycle=max(own.cycle, report.cycle),
        restarts_used=max(own.restarts_used, report.restarts_used),
        script=_script((own, report), max(own.cycle, report.cycle)),
        nodes=nodes or own.nodes,
        ranks=tuple(ranks[number] for number in sorted(ranks)),
    )


def _script(parts: Iterable[JobReport], cycle: int) -> str:
    """Returns the sign of the script that the node of the lowest rank has seen; "no sign" only if no node has one."""
    told = [
        (part.script == NO_SIGN, part.ranks[0].rank if part.ranks else 0, part.script)
        for part in parts
        if part.script and part.cycle == cycle
    ]
    return min(told)[2] if told else ""


def _state(own: JobReport, roster: Roster, known: Mapping[str, Known]) -> tuple[JobState, str]:
    if roster.reason or roster.state is not JobState.RUNNING:
        return roster.state, roster.reason or own.reason
    parts = [(each.name, known[each.name].part) for each in roster.nodes if _runs(each) and each.name in known]
    for name, part in parts:
        if part.state is not JobState.RUNNING and part.cycle == roster.cycle:
            return part.state, f"node {name}: {part.reason}"
    if any(part.cycle != roster.cycle for _, part in parts):
        return JobState.STARTING, f"cycle {roster.cycle} starts"
    reasons = {part.reason for _, part in parts}
    if len(reasons) == 1:
        return JobState.RUNNING, reasons.pop()
    up = sum(rank.state == "running" for _, part in parts for rank in part.ranks)
    ranks = "1 rank runs" if up == 1 else f"{up} ranks run"
    return JobState.RUNNING, f"{ranks} on {len(parts)} nodes"


def _lacking(roster: Roster, unheard: Mapping[str, int]) -> str:
    """Returns what is not shown, as a clause; "" if that is nothing."""
    nodes = [each.name for each in roster.nodes if _runs(each)]
    silent = sum(name in unheard for name in nodes)
    if not silent:
        return ""
    who, whose = ("has", "its") if silent == 1 else ("have", "their")
    return f"{silent} of {len(nodes)} nodes {who} not connected to this supervisor yet, so {whose} ranks are not shown"


def _runs(node: RosterNode) -> bool:
    return node.group_rank is not None


def _node(node: RosterNode, known: Known | None, unheard_since_ns: int | None, *, only_bad: bool) -> JobNodeReport:
    report = JobNodeReport(node.name, node.state, node.group_rank, node.reason)
    if known is None:
        return msgspec.structs.replace(report, heard_at_ns=unheard_since_ns)
    is_lost = node.state == "lost"
    own = next((each for each in known.part.nodes if each.unreachable_pid is not None), report)
    return msgspec.structs.replace(
        report,
        reason=known.lost_reason if is_lost else node.reason or own.reason,
        unreachable_pid=own.unreachable_pid,
        unreachable_state=own.unreachable_state,
        heard_at_ns=known.heard_at_ns if is_lost or not known.answers else None,
        lost_at_ns=known.lost_at_ns if is_lost else None,
        ranks=tuple(rank.rank for rank in known.part.ranks) if is_lost or _runs(node) else (),
        log_dir=known.part.log_dir,
        checks=_checks(known, only_bad=only_bad),
    )


def _checks(known: Known, *, only_bad: bool) -> tuple[CheckReport, ...]:
    """Returns the checks in the node's last report."""
    found = (check for node in known.part.nodes for check in node.checks)
    return tuple(each for each in found if not only_bad or each.verdict != Health.HEALTHY)


def _ranks(roster: Roster, known: Mapping[str, Known], now_ns: int) -> tuple[RankReport, ...]:
    """Returns the newest cycle's ranks; a lost node's ranks that no other node runs are shown as last heard."""
    found: dict[int, RankReport] = {}
    for node in sorted(roster.nodes, key=lambda each: (each.state != "lost") + _runs(each)):  # the last one wins
        what = known.get(node.name)
        if what is None or what.part.cycle != max(roster.cycle, 0):
            continue
        if node.state == "lost":
            found |= {rank.rank: _lost(rank) for rank in what.part.ranks}
        else:
            age_s = 0.0 if what.answers else max(0.0, (now_ns - what.heard_at_ns) / 1e9)
            found |= {rank.rank: _aged(rank, age_s) for rank in what.part.ranks}
    return tuple(found[number] for number in sorted(found))


def _lost(rank: RankReport) -> RankReport:
    if rank.state in OVER:
        return rank
    return msgspec.structs.replace(rank.without_ages(), state="lost")


def _aged(rank: RankReport, age_s: float) -> RankReport:
    """Returns a rank heard `age_s` ago: its ages have grown since, as far as anybody knows."""
    if not age_s or rank.state in OVER:
        return rank
    sections = tuple(SectionReport(each.name, each.age_s + age_s, each.limit_s) for each in rank.sections)
    heartbeat_age_s = None if rank.heartbeat_age_s is None else rank.heartbeat_age_s + age_s
    main_thread_age_s = None if rank.main_thread_age_s is None else rank.main_thread_age_s + age_s
    return msgspec.structs.replace(
        rank, heartbeat_age_s=heartbeat_age_s, main_thread_age_s=main_thread_age_s, sections=sections
    )
