"""`holdfast top`: a live view of all jobs that the user may see, on a terminal."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from supervisor.cli import output
from supervisor.cli.supervisor_discovery import Supervisors, add_place_arguments
from supervisor.config.values import plain
from supervisor.errors import ConfigurationError, InvalidRequestError

INTERVAL_MIN_S = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="open this job: its id, or a unique prefix of it")
    parser.add_argument(
        "-d", "--interval", type=_interval, default=output.REFRESH_S, metavar="S",
        help="seconds between two looks (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--no-color", action="store_true", help="no colours; the variable NO_COLOR does the same")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    """Returns once the user quits. Raises HoldfastError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequestError(
            "cannot show a live view: stdin and stdout are not a terminal; see holdfast status --watch"
        )
    if (term := os.environ.get("TERM", "")) in ("", "dumb"):
        raise InvalidRequestError(
            f"cannot show a live view: TERM={term} does not name a terminal that can show it; "
            "set it, such as TERM=xterm-256color, or see holdfast status --watch"
        )
    name = ""
    with Supervisors(arguments) as supervisors:
        if arguments.job:
            name = supervisors.find(arguments.job, verb="show").name
    try:
        from supervisor.cli.top_view.live_keys import LiveView
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"cannot show a live view: module {error.name} is not installed for {sys.executable}; install "
            "holdfast-torch with its extra [top]: in a clone, pip install '.[supervisor,top]'"
        ) from error
    from supervisor.cli.top_view.job_polling import JobPoller

    colours = output.text_layout(arguments.no_color).colours
    LiveView(JobPoller(arguments), interval_s=arguments.interval, job_id=name, colours=colours).run()
    return 0


def _interval(text: str) -> float:
    try:
        seconds = float(plain(text))
    except ValueError:
        seconds = 0.0
    if not INTERVAL_MIN_S <= seconds < 3600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {INTERVAL_MIN_S:g} to 3600")
    return seconds
