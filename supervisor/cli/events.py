"""`holdfast events JOB`: what happened to a job, and why?"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator

from supervisor.cli import documents, output
from supervisor.cli.supervisors import FoundJob, Supervisors, add_place_arguments
from supervisor.errors import NoSupervisorError
from supervisor.ports import RecordedEvent

PAGE_EVENTS = 1_000
HEADS = ("TIME", "CYCLE", "RANK", "WHAT", "WHY")
WIDTHS = (18, 5, 4, 17, 0)  # it grows while it is read, so that the widths must be known beforehand


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id, or a beginning that only it has")
    parser.add_argument("-f", "--follow", action="store_true", help="and those that come, until the job ends")
    output.add_output_arguments(parser, "table", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments) as supervisors:
        found = supervisors.find(arguments.job, verb="show events of")
        events = events_of(found, supervisors, follow=arguments.follow)
        if arguments.output == "jsonl":
            for event in events:
                output.write_json(documents.event_document(event), one_line=True)
        else:
            _write_table(events, output.paper(arguments.no_color))
    return 0


def events_of(found: FoundJob, supervisors: Supervisors, *, follow: bool) -> Iterator[RecordedEvent]:
    """From its supervisor; from the journal when there is none, or when it ends while it is asked."""
    job_id = found.report.job_id
    last = 0
    if found.supervisor is not None:
        try:
            for each in found.supervisor.client.watch(job_id, follow=follow and found.is_live):
                if isinstance(each, RecordedEvent):
                    yield each
                    last = each.sequence
            return
        except NoSupervisorError as error:
            if not found.supervisor.is_private:
                raise
            output.say(f"{error}; what follows is from the journal")
    from supervisor.edges.machine.journal.journal_reader import open_reader

    with open_reader(*supervisors.state_dirs) as reader:
        while page := reader.events(job_id, after_sequence=last, limit=PAGE_EVENTS):
            yield from page
            last = page[-1].sequence


def _write_table(events: Iterable[RecordedEvent], page: output.Paper) -> None:
    output.write(output.row(HEADS, WIDTHS, page, is_head=True))
    for event in events:
        rank = "-" if event.rank is None else str(event.rank)
        cells = (output.event_time(event.at_ns), str(event.cycle), rank, event.kind, event.reason)
        output.write(output.row(cells, WIDTHS, page))
