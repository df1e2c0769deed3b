"""How does a job on several nodes look as one, from what each of them said last?

Plain functions of what is known. A node that is lost keeps the place in the list that it had, with its last words.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.core.cluster.roster import Roster, RosterNode
from supervisor.core.facts import JobState
from supervisor.core.node_health import Health
from supervisor.ports import CheckReport, JobNodeReport, JobReport, NodeReport, RankReport, SectionReport

HEALTHY_CHECKS_NODES_MAX = 64  # of a job on more nodes, healthy checks are not shown
OVER = ("exited", "failed", "stopped")  # of a rank: its ages stand still


class Known(msgspec.Struct, frozen=True):
    """What is known of one node."""

    part: JobReport
    node: NodeReport
    heard_at_ns: int
    answers: bool = True  # it was heard just now
    lost_at_ns: int | None = None
    lost_reason: str = ""


def merged(own: JobReport, roster: Roster, known: Mapping[str, Known], *, now_ns: int) -> JobReport:
    """`own` is the leader's own part: what the job's nodes have in common is taken from it."""
    ended = own.state.has_ended
    only_bad = len(roster.nodes) > HEALTHY_CHECKS_NODES_MAX
    state, reason = (own.state, own.reason) if ended else _state(own, roster, known)
    return msgspec.structs.replace(
        own,
        state=state,
        reason=reason,
        cycle=max(roster.cycle, 0),
        nodes=tuple(_node(each, known.get(each.name), only_bad=only_bad) for each in roster.nodes),
        ranks=_ranks(roster, known, now_ns),
    )


def apart(report: JobReport, *, own: JobReport, heard_at_ns: int, now_ns: int) -> JobReport:
    """The whole job as it was last heard of, with this node's own part as it is now. For times without a leader."""
    age_s = max(0.0, (now_ns - heard_at_ns) / 1e9)
    mine = {rank.rank: rank for rank in own.ranks}
    ranks = {rank.rank: _aged(rank, age_s) for rank in report.ranks} | mine
    names = {rank.node for rank in own.ranks}
    nodes = tuple(
        each if each.name in names or each.lost_at_ns is not None
        else msgspec.structs.replace(each, heard_at_ns=each.heard_at_ns or heard_at_ns)
        for each in report.nodes
    )  # fmt: skip
    return msgspec.structs.replace(
        own,
        cycle=max(own.cycle, report.cycle),
        restarts_used=max(own.restarts_used, report.restarts_used),
        nodes=nodes or own.nodes,
        ranks=tuple(ranks[number] for number in sorted(ranks)),
    )


def _state(own: JobReport, roster: Roster, known: Mapping[str, Known]) -> tuple[JobState, str]:
    if roster.state is not JobState.RUNNING:
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
    return JobState.RUNNING, f"{up} ranks run on {len(parts)} nodes"


def _runs(node: RosterNode) -> bool:
    return node.group_rank is not None


def _node(node: RosterNode, known: Known | None, *, only_bad: bool) -> JobNodeReport:
    report = JobNodeReport(node.name, node.state, node.group_rank, node.reason)
    if known is None:
        return report
    is_lost = node.state == "lost"
    return msgspec.structs.replace(
        report,
        reason=known.lost_reason if is_lost else node.reason,
        heard_at_ns=known.heard_at_ns if is_lost or not known.answers else None,
        lost_at_ns=known.lost_at_ns if is_lost else None,
        ranks=tuple(rank.rank for rank in known.part.ranks) if is_lost or _runs(node) else (),
        log_dir=known.part.log_dir,
        checks=_checks(known, only_bad=only_bad),
    )


def _checks(known: Known, *, only_bad: bool) -> tuple[CheckReport, ...]:
    """As the node said last."""
    found = (check for node in known.part.nodes for check in node.checks)
    return tuple(each for each in found if not only_bad or each.verdict != Health.HEALTHY)


def _ranks(roster: Roster, known: Mapping[str, Known], now_ns: int) -> tuple[RankReport, ...]:
    """Of the newest cycle; a rank that nobody runs in the place of a lost node is shown as that node left it."""
    found: dict[int, RankReport] = {}
    for node in sorted(roster.nodes, key=lambda each: (each.state != "lost") + _runs(each)):  # The last word counts.
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
    return msgspec.structs.replace(rank, state="lost", heartbeat_age_s=None, heartbeat_limit_s=None, sections=())


def _aged(rank: RankReport, age_s: float) -> RankReport:
    """As it was `age_s` ago: ages have grown since, as far as anybody knows."""
    if not age_s or rank.state in OVER:
        return rank
    sections = tuple(SectionReport(each.name, each.age_s + age_s, each.limit_s) for each in rank.sections)
    heartbeat_age_s = None if rank.heartbeat_age_s is None else rank.heartbeat_age_s + age_s
    return msgspec.structs.replace(rank, heartbeat_age_s=heartbeat_age_s, sections=sections)
