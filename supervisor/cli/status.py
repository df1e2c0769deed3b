"""`holdfast status`: which jobs are live, or what is the state of one job, rank by rank?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable

from supervisor.cli import command_json, node_check_table, output
from supervisor.cli.jobs import restarts_cell
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments
from supervisor.core.printable import one_line
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.processes import job_claims
from supervisor.errors import ExhaustedError, NoSupervisorError, NotFoundError
from supervisor.local_time import local_time
from supervisor.ports.reports import JobNodeReport, JobReport, RankReport

LIVE_HEADS = ("JOB", "STATE", "CYCLE", "RESTARTS", "RANKS", "AGE", "REASON")
NODE_HEADS = ("NODE", "STATE", "GROUP RANK", "RANKS", "HEARD", "REASON")
STRAGGLER_HEADS = ("SLOW", "NODE", "SECTION", "TAKES", "MEDIAN", "TIMES THE MEDIAN")
RANK_HEADS = ("RANK", "NODE", "PID", "STATE", "HEARTBEAT", "CYCLE AGE", "SECTIONS")
RETURNS_WITHIN_S = 10.0  # the supervisor of a job of which nothing is left: it knows how the job has ended


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument("--watch", action="store_true", help="refresh every two seconds; with JOB, until it ends")
    output.add_output_arguments(parser, "table", "json", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    layout = output.text_layout(arguments.no_color)
    code = 0

    def show() -> FoundJob | None:
        nonlocal code
        with Supervisors(arguments, waits=not arguments.watch) as supervisors:
            if arguments.job is None:
                _show_all(supervisors, arguments, layout)
                code = supervisors.silence.exit_code
                return None
            found = supervisors.find(arguments.job, verb="show")
            _show_one(found, arguments, layout)
            code = 0 if found.is_live else supervisors.silence.exit_code
            return found

    if arguments.watch:
        output.show_again(_Watch(show).again, layout)
    else:
        show()
    return code


class _Watch:
    """Refreshes the view. Once it has shown something, a brief absence of the supervisor does not end it."""

    def __init__(self, show: Callable[[], FoundJob | None]) -> None:
        self._show = show
        self._clock = Clock()
        self._has_shown = False
        self._is_replaced = True  # by another one, should it be lost; a private one is not
        self._job_id = ""
        self._gone_since_s: float | None = None  # nobody answers, and nothing of the job is left
        self._away_told = False

    def again(self) -> bool:
        """Returns True if there is more to see. Raises HoldfastError."""
        try:
            found = self._show()
        except (ExhaustedError, NoSupervisorError, NotFoundError):
            if not self._has_shown or not self._may_return():
                raise
            return True
        self._has_shown = True
        if found is not None and found.supervisor is not None and found.supervisor.is_private:
            self._is_replaced = False
        if found is None or found.report.state.has_ended:
            return found is None
        self._job_id = found.report.job_id
        if found.supervisor is None:  # This is what a journal says.
            return self._may_return()
        self._gone_since_s, self._away_told = None, False
        return True

    def _may_return(self) -> bool:
        """Returns whether to wait for the supervisor: as long as anything of the job is left, and a moment longer."""
        if not self._is_replaced:
            return False
        if not self._away_told:
            self._away_told = True
            output.say("the supervisor has gone; this command waits for the next one")
        if not self._job_id or job_claims.is_live(self._job_id):
            return True
        now_s = self._clock.now_s()
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        return now_s - self._gone_since_s < RETURNS_WITHIN_S


def _show_all(supervisors: Supervisors, arguments: Namespace, layout: output.TextLayout) -> None:
    jobs = supervisors.jobs(include_ended=False)
    if arguments.output == "jsonl":
        for job in jobs:
            output.write_json(command_json.job_document(job), one_line=True)
    elif arguments.output == "json":
        output.write_json(command_json.status_document(jobs), one_line=arguments.watch)
    elif jobs:
        output.write(output.table(LIVE_HEADS, [live_row(job) for job in jobs], layout))
    elif not supervisors.silence.exit_code:
        running = output.plural(len(supervisors.answering), "supervisor")
        output.say(f"no job is running (asked {running}); holdfast jobs lists finished jobs")
    supervisors.tell_refusals()


def _show_one(found: FoundJob, arguments: Namespace, layout: output.TextLayout) -> None:
    if arguments.output == "jsonl":
        output.write_json(command_json.job_document(found), one_line=True)
    elif arguments.output == "json":
        output.write_json(command_json.status_document([found]), one_line=arguments.watch)
    else:
        output.write(job_text(found, layout))


def live_row(job: FoundJob) -> tuple[str, ...]:
    report = job.report
    up = sum(rank.state == "running" for rank in report.ranks)
    age_s = (Clock().unix_ns() - report.submitted_at_ns) / 1e9
    return (
        job.name, report.state.value, str(report.cycle), restarts_cell(report), f"{up}/{len(report.ranks)}",
        output.duration(age_s), report.reason,
    )  # fmt: skip


def job_text(found: FoundJob, layout: output.TextLayout) -> str:
    report = found.report
    state = output.coloured(report.state.value, layout) + _end_of(report)
    lines = [
        ("job", found.name),
        ("state", ""),
        ("reason", report.reason),
        ("cycle", f"{report.cycle}" + (f", iteration {report.iteration}" if report.iteration else "")),
        ("script", report.script),
        ("restarts", f"{report.restarts_used} used of {report.max_restarts}"),
        ("submitted", local_time(report.submitted_at_ns)),
        ("command", " ".join(report.command)),
        ("logs", report.log_dir),
        ("nodes", _nodes_text(report)),
        ("checks", node_check_table.counts([check for node in report.nodes for check in node.checks])),
        ("supervisor", _supervisor_text(found)),
    ]
    shown = [(name, state if name == "state" else one_line(value)) for name, value in lines]
    text = "".join(f"{name:<12}{output.folded(value, layout, indent=12)}" for name, value in shown if value)
    now_ns = Clock().unix_ns()
    if len(report.nodes) > 1:
        text += "\n" + output.table(NODE_HEADS, [_node_row(node, report, now_ns) for node in report.nodes], layout)
    if told := node_check_table.table(report.nodes, now_ns, layout):
        text += "\n" + told
    if report.stragglers:
        text += "\n" + output.table(STRAGGLER_HEADS, [_straggler_row(each) for each in report.stragglers], layout)
    if report.ranks:
        text += "\n" + output.table(RANK_HEADS, [_rank_row(rank, now_ns) for rank in report.ranks], layout)
    return text


def _end_of(report: JobReport) -> str:
    if report.ended_at_ns is None:
        return ""
    code = "" if report.exit_code is None else f", exit code {report.exit_code}"
    return f" at {local_time(report.ended_at_ns)}{code}"


def _supervisor_text(found: FoundJob) -> str:
    if found.report.state.has_ended:
        return ""
    if found.supervisor is None:
        what = "has ended" if found.is_lost else "does not answer"
        return f"pid {found.report.supervisor_pid} {what}: this is the last state that it recorded"
    kind = "private" if found.supervisor.is_private else "of the node" if found.is_own else "of its user"
    return f"pid {found.report.supervisor_pid} ({kind})"


def _nodes_text(report: JobReport) -> str:
    if len(report.nodes) <= 1:
        return ", ".join(f"{node.name} ({node.state})" for node in report.nodes)
    counts = Counter(node.state for node in report.nodes)
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def _node_row(node: JobNodeReport, report: JobReport, now_ns: int) -> tuple[str, ...]:
    heard = "now" if node.heard_at_ns is None else f"{output.duration((now_ns - node.heard_at_ns) / 1e9)} ago"
    reason = node.reason
    if node.lost_at_ns is not None:
        reason += f"; since {local_time(node.lost_at_ns)}"
    elif node.heard_at_ns is not None and node.state != "left":
        reason = f"no answer for {output.duration((now_ns - node.heard_at_ns) / 1e9)}" + (reason and f"; {reason}")
    group_rank = "" if node.group_rank is None else str(node.group_rank)
    elsewhere = {each.rank for each in report.ranks if each.node != node.name}  # as after a spare has taken a lost part
    ranks = output.ranges(tuple(rank for rank in node.ranks if rank not in elsewhere))
    return node.name, node.state, group_rank, ranks, heard, reason


def _straggler_row(each: Straggler) -> tuple[str, ...]:
    who = ("node, ranks " if each.is_node else "rank ") + output.ranges(each.ranks)
    took, median = (f"{value_s * 1e3:.3g} ms" for value_s in (each.took_s, each.median_s))
    return who, each.node, each.section, took, median, f"{each.ratio:.2f} (of {each.of_ranks} ranks)"


def _rank_row(rank: RankReport, now_ns: int) -> tuple[str, ...]:
    started = rank.cycle_started_at_ns
    cycle_age = "" if started is None else output.duration((now_ns - started) / 1e9)
    sections = [
        f"{each.name} {output.duration(each.age_s)}"
        + (f" of {output.duration(each.limit_s)}" if each.limit_s is not None else "")
        for each in rank.sections
    ]
    state = rank.state
    if rank.exit_signal is not None:
        state += f" (signal {rank.exit_signal})"
    elif rank.exit_code is not None:
        state += f" ({rank.exit_code})"
    pid = "" if rank.pid is None else str(rank.pid)
    return str(rank.rank), rank.node, pid, state, heartbeat_cell(rank), cycle_age, ", ".join(sections)


def heartbeat_cell(rank: RankReport) -> str:
    """Returns how the rank is watched: how long it has been silent, and its limit."""
    limit = "" if rank.heartbeat_limit_s is None else f" (limit {output.duration(rank.heartbeat_limit_s)})"
    if rank.heartbeat_age_s is not None:
        return f"{output.duration(rank.heartbeat_age_s)} ago{limit}"
    if rank.main_thread_age_s is not None:
        told = f"main thread {output.duration(rank.main_thread_age_s)} ago"
        return (
            told if rank.main_thread_limit_s is None else f"{told} (limit {output.duration(rank.main_thread_limit_s)})"
        )
    return f"none yet{limit}" if limit else "not monitored"
