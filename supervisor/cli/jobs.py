"""`holdfast jobs`: which jobs were there, finished ones too, and how did they end?"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from supervisor.cli import command_json, output
from supervisor.cli.argument_values import positive
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments
from supervisor.core.facts import JobState
from supervisor.edges.machine.clock import Clock
from supervisor.local_time import local_time
from supervisor.ports.reports import JobReport

HEADS = ("JOB", "STATE", "EXIT", "RESTARTS", "SUBMITTED", "TOOK", "REASON")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", type=positive, default=0, metavar="N", help="only the newest N")
    parser.add_argument(
        "--state", type=_states, default=frozenset[JobState](), metavar="STATE",
        help=f"only jobs in this state; several with commas: {', '.join(JobState)}",
    )  # fmt: skip
    output.add_output_arguments(parser, "table", "json", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        everything = supervisors.jobs(include_ended=True)
        found = [each for each in everything if not arguments.state or each.report.state in arguments.state]
        if arguments.limit > 0:
            found = found[: arguments.limit]
        if arguments.output == "json":
            output.write_json(command_json.status_document(found), one_line=False)
        elif arguments.output == "jsonl":
            for each in found:
                output.write_json(command_json.job_document(each), one_line=True)
        elif found:
            output.write(output.table(HEADS, [row(each) for each in found], output.text_layout(arguments.no_color)))
        elif not supervisors.silence.exit_code:
            output.say(_why_none(len(everything), supervisors))
        supervisors.tell_refusals()
        return supervisors.silence.exit_code


def _states(text: str) -> frozenset[JobState]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = next((word for word in words if word not in set(JobState)), None)
    if unknown is not None or not words:
        raise ArgumentTypeError(f"there is no state {(unknown or text)!r}; the states are {', '.join(JobState)}")
    return frozenset(JobState(word) for word in words)


def _why_none(number: int, supervisors: Supervisors) -> str:
    if number:
        return f"none of {output.plural(number, 'job')} is in that state"
    return f"no jobs found in {supervisors.history.folder}"


def restarts_cell(report: JobReport) -> str:
    return f"{report.restarts_used}/{report.max_restarts}"


def row(found: FoundJob) -> tuple[str, ...]:
    report = found.report
    ended_at_ns = report.ended_at_ns or (Clock().unix_ns() if found.supervisor else report.submitted_at_ns)
    took = output.duration((ended_at_ns - report.submitted_at_ns) / 1e9)
    is_silent = found.supervisor is None and not report.state.has_ended
    reason = report.reason
    if is_silent and not found.is_lost:
        reason = f"supervisor {report.supervisor_pid} does not answer; last: {reason}"
    return (
        found.name,
        report.state.value + ("?" if is_silent else ""),
        "" if report.exit_code is None else str(report.exit_code),
        restarts_cell(report),
        local_time(report.submitted_at_ns),
        "" if is_silent else took,
        reason,
    )
