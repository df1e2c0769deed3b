"""`holdfast report JOB`: what was a job's life? On the terminal, or as one page, a picture or JSON in a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import supervisor
from supervisor.cli import offline_logs, output
from supervisor.cli.current_folder import current_folder
from supervisor.cli.events import events_of
from supervisor.cli.report_last_output import READ_TIMEOUT_S, with_last_words
from supervisor.cli.supervisor_discovery import FoundJob, Supervisors, add_place_arguments
from supervisor.edges.machine.clock import Clock
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import InvalidRequestError, NotFoundError
from supervisor.report.timeline.timeline import Life
from supervisor.report.timeline.timeline_builder import life_of

PLAIN = ("text", "json")
FILES = (".html", ".json", ".svg")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, or a unique prefix of it")
    parser.add_argument(
        "-o", "--output", type=_output, default="text", metavar="text|json|F.html|F.json|F.svg",
        help="a summary on the terminal (text), JSON, or a file: one page that holds all, JSON, a picture "
        "(default: text)",
    )  # fmt: skip
    parser.add_argument("--no-color", action="store_true", help="plain text; the variable NO_COLOR does the same")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    with Supervisors(arguments, waits=True) as supervisors:
        found = supervisors.find(arguments.job, verb="report on")
        life = whole_life(found, supervisors)
    _show(life, arguments)
    return 0


def whole_life(found: FoundJob, supervisors: Supervisors) -> Life:
    """Returns the job's life, so far if it still runs, with the last output of its culprits."""
    events = list(events_of(found, supervisors, follow=False))
    life = life_of(found.report, events, now_ns=Clock().unix_ns())
    return with_last_words(life, partial(_logs, found))


def _logs(found: FoundJob, choice: LogChoice) -> Iterable[LogPiece]:
    """Yields a rank's output: from the supervisor, or, of a job that has ended, from what the node can read itself.

    Another user's supervisor reads it, or nobody does: the folders that it names may be a third user's.
    """
    if found.supervisor is not None:
        from supervisor.edges.operators.control_client import bounded  # late: it loads gRPC

        try:
            client = found.supervisor.client
            yield from bounded(client.logs(found.report.job_id, choice, within_s=READ_TIMEOUT_S, on_note=_nobody))
            return
        except NotFoundError:
            if found.is_live or not found.is_own:
                raise
    yield from offline_logs.read(found.report, choice, on_note=_nobody)


def _nobody(note: str) -> None:
    """Does nothing: whatever is missing is left out of the report."""


def _output(word: str) -> str:
    if word in PLAIN or word.endswith(FILES):
        return word
    raise ArgumentTypeError(f"{word!r} is not an output; give text, json, or a file that ends in {', '.join(FILES)}")


def _show(life: Life, arguments: Namespace) -> None:
    if arguments.output == "text":
        from supervisor.report.terminal_report import text_of

        output.write(text_of(life, width=output.text_layout(arguments.no_color).width))
    elif arguments.output == "json":
        from supervisor.report.report_json import document_of

        output.write_json(document_of(life), one_line=False)
    else:
        path = Path(arguments.output)
        write_file(path, rendered(life, path.suffix))
        output.say(f"wrote {path}")


def rendered(life: Life, suffix: str) -> str:
    """Returns the contents of a file of that kind."""
    if suffix == ".html":
        from supervisor.report.page import page_of

        return page_of(life, made_at_ns=Clock().unix_ns(), version=supervisor.__version__)
    if suffix == ".svg":
        from supervisor.report.svg import picture_of

        return picture_of(life)
    import json

    from supervisor.report.report_json import document_of

    return json.dumps(document_of(life), indent=2) + "\n"


def write_file(path: Path, text: str) -> None:
    """Writes all of it or nothing: a page that is being read is replaced at once."""
    try:
        number, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with contextlib.ExitStack() as undo:
            undo.callback(os.unlink, draft)
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            umask = os.umask(0o077)
            os.umask(umask)
            os.chmod(draft, 0o666 & ~umask)
            os.replace(draft, path)
            undo.pop_all()
    except OSError as error:
        if not path.is_absolute() and not current_folder():
            raise InvalidRequestError(
                f"cannot write {path}: the current folder was removed; go to one that exists"
            ) from error
        raise InvalidRequestError(f"cannot write {path}: {error.strerror}; give another file to -o") from error
