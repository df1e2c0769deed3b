"""`holdfast events JOB`: what happened to a job, and why?"""

from __future__ import annotations

import heapq
import itertools
from argparse import ArgumentParser, Namespace
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from supervisor.cli import output
from supervisor.cli.argument_values import moment, positive, rank_number
from supervisor.cli.command_json import events_document
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments, known_ranks
from supervisor.edges.operators.event_json import event_document
from supervisor.errors import InvalidRequestError, NoSupervisorError, NotFoundError
from supervisor.local_time import local_time
from supervisor.ports.reports import JobReport, RecordedEvent, SeenEvents
from supervisor.report.timeline.event_ordering import moment_ns

PAGE_EVENTS = 1_000
HEADS = ("TIME", "CYCLE", "RANK", "WHAT", "WHY")
WIDTHS = (29, 5, 4, 17, 0)  # it grows while it is read, so that the widths must be known beforehand
KINDS_NAMED_MAX = 30
SORTED_EVENTS = 1_000  # an event finds its place among so many


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument("-f", "--follow", action="store_true", help="also show new events until the job ends")
    parser.add_argument("-n", "--tail", type=positive, default=0, metavar="N", help="only the last N events")
    parser.add_argument(
        "--kind", action="append", default=[], metavar="KIND",
        help="only events of this kind, such as worker_failed; may be repeated or list several with commas",
    )  # fmt: skip
    parser.add_argument("--rank", type=rank_number, metavar="N", help="only events of this rank")
    parser.add_argument(
        "--since", type=moment, default=0, metavar="WHEN",
        help="only events since then: an age such as 90s, 10m, 1h30m or 1d, or an ISO 8601 time",
    )  # fmt: skip
    output.add_output_arguments(parser, "table", "json", "jsonl")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        found = supervisors.find(arguments.job, verb="show events of")
        if arguments.output == "json" and arguments.follow:
            raise InvalidRequestError("cannot follow events with -o json: a document has an end; write -o jsonl")
        chosen = _Chosen(arguments)
        events = chosen.of(found, supervisors)
        known = known_ranks(found.report, arguments.rank)
        if known and arguments.follow and found.is_live:
            output.say(f"{known}; rank {arguments.rank} is waited for")
        elif known:
            events = chosen.check_rank(events, known)
        if arguments.output == "json":
            output.write_json(events_document(found.report.job_id, map(event_document, events)), one_line=False)
        elif arguments.output == "jsonl":
            for event in events:
                output.write_json(event_document(event), one_line=True)
        else:
            _write_table(events, found.report, output.text_layout(arguments.no_color), follow=arguments.follow)
        if not chosen.shown:
            output.say(chosen.why_none(found.name))
    return 0


class _Chosen:
    """The events that were asked for; counts those that were seen, to say why none of them matches."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._kinds = {kind.strip() for text in arguments.kind for kind in text.split(",") if kind.strip()}
        self._seen: Counter[str] = Counter()
        self._has_seen_rank = False
        self.shown = 0

    def of(self, found: FoundJob, supervisors: Supervisors) -> Iterator[RecordedEvent]:
        seen = SeenEvents()  # The lines that follow may come from another node, which numbers the events itself.
        if self._arguments.tail:
            # The reading that follows tells what is still missing.
            on_note = _unsaid if self._arguments.follow else output.say
            past = events_of(found, supervisors, follow=False, seen=seen, on_note=on_note)
            for event in deque((event for event in past if self._fits(event)), self._arguments.tail):
                yield self._show(event)
            if not self._arguments.follow:
                return
        for event in events_of(found, supervisors, follow=self._arguments.follow, seen=seen):
            if self._fits(event):
                yield self._show(event)

    def check_rank(self, events: Iterator[RecordedEvent], known: str) -> Iterator[RecordedEvent]:
        """Returns the same events. Raises NotFoundError if none is of the rank. `known`: see known_ranks."""
        first = list(itertools.islice(events, 1))
        if not first and not self._has_seen_rank:
            raise NotFoundError(f"cannot show events of rank {self._arguments.rank}: there are none; {known}")
        return itertools.chain(first, events)

    def why_none(self, job_id: str) -> str:
        seen = self._seen.total()
        if not seen:
            return f"no event of job {job_id} is recorded"
        kinds = ", ".join(kind for kind, _ in self._seen.most_common(KINDS_NAMED_MAX))
        return f"none of the {output.plural(seen, 'event')} of job {job_id} fits; their kinds are {kinds}"

    def _fits(self, event: RecordedEvent) -> bool:
        self._seen[event.kind] += 1
        self._has_seen_rank |= event.rank == self._arguments.rank
        return (
            (not self._kinds or event.kind in self._kinds)
            and self._arguments.rank in (None, event.rank)
            and event.at_ns >= self._arguments.since
        )

    def _show(self, event: RecordedEvent) -> RecordedEvent:
        self.shown += 1
        return event


def events_of(
    found: FoundJob,
    supervisors: Supervisors,
    *,
    follow: bool,
    within_s: float | None = None,
    seen: SeenEvents | None = None,
    say: Callable[[str], None] = output.say,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[RecordedEvent]:
    """Reads from the supervisor, or from the journal if there is none or if it ends during the call.

    Yields none of another run of the job's id: a supervisor tells those of the newest one. The journal is this user's
    own: it has nothing of another user's job. `within_s`: see ControlClient.watch. `seen` has the events that are not
    wanted again. `on_note` is told what is missing, and why; None: `say` is.
    """
    report, supervisor, seen, note = found.report, found.supervisor, seen or SeenEvents(), on_note or say
    if supervisor is None:
        seen.next_source()
        yield from filter(seen.is_new, _recorded(report, supervisors) if found.is_own else ())
        return

    def from_journal(error: NoSupervisorError) -> Iterator[RecordedEvent]:
        if not found.is_own or not (supervisor.is_private or _is_recorded(report, supervisors)):
            raise error
        note(f"{error}; what follows is from the journal")
        if supervisor.is_private:
            supervisor.await_end()
        yield from _recorded(report, supervisors)

    watched = SteadyClient(supervisor.client, report.job_id, say=say, is_own=found.is_own).watch(
        on_note=note, follow=follow and found.is_live, within_s=within_s,
        comes_back=found.is_live and not supervisor.is_private, seen=seen, then=from_journal,
    )  # fmt: skip
    for told in watched:
        if isinstance(told, RecordedEvent):
            yield told
        elif told.submitted_at_ns != report.submitted_at_ns:
            if not (found.is_own and _is_recorded(report, supervisors)):
                note(
                    f"the events of this run of job {found.name} are not known here: the supervisor has a later run now"
                )
            yield from events_of(msgspec.structs.replace(found, supervisor=None), supervisors, follow=False, seen=seen)
            return


def _unsaid(note: str) -> None:
    """Leaves a note to the next reader of the same events."""


def _recorded(run: JobReport, supervisors: Supervisors) -> Iterator[RecordedEvent]:
    last = 0
    while page := _page(run, supervisors, last):
        yield from page
        last = page[-1].sequence


def _page(run: JobReport, supervisors: Supervisors, last: int) -> list[RecordedEvent]:
    return supervisors.history.read(
        lambda reader: reader.events(run.job_id, run.submitted_at_ns, after_sequence=last, limit=PAGE_EVENTS)
    )


def _is_recorded(run: JobReport, supervisors: Supervisors) -> bool:
    """Returns whether the journals that this command reads know the run: a node's supervisor may have another one."""
    return supervisors.history.read(lambda reader: reader.recorded(run.job_id, run.submitted_at_ns)) is not None


def in_time(events: Iterable[RecordedEvent]) -> Iterator[RecordedEvent]:
    """Sorts by time: events of other nodes arrive late. One whose clock is far off stays where it arrived."""
    waiting: list[tuple[int, int, RecordedEvent]] = []
    for event in events:
        heapq.heappush(waiting, (moment_ns(event), event.sequence, event))
        if len(waiting) > SORTED_EVENTS:
            yield heapq.heappop(waiting)[-1]
    while waiting:
        yield heapq.heappop(waiting)[-1]


def _write_table(
    events: Iterator[RecordedEvent], report: JobReport, layout: output.TextLayout, *, follow: bool
) -> None:
    """Writes the table. Events of several nodes are in order of time, with a column for the nodes."""
    nodes = {node.name for node in report.nodes}
    if len(nodes) <= 1 and not follow:  # The report of a node that did not lead names that node alone.
        first = list(itertools.islice(events, SORTED_EVENTS))
        nodes |= {event.node for event in first}
        events = itertools.chain(first, events)
    node_width, has_nodes = max(map(len, nodes), default=0), len(nodes) > 1
    heads = (*HEADS[:2], "NODE", *HEADS[2:]) if has_nodes else HEADS
    widths = (*WIDTHS[:2], max(node_width, 4), *WIDTHS[2:]) if has_nodes else WIDTHS
    output.write(output.row(heads, widths, layout, is_head=True))
    for event in in_time(events) if has_nodes and not follow else events:
        rank = "" if event.rank is None else str(event.rank)
        node = (event.node,) if has_nodes else ()
        time = local_time(event.at_ns, milliseconds=True)
        cells = (time, str(event.cycle), *node, rank, event.kind, event.reason)
        output.write(output.row(cells, widths, layout))
