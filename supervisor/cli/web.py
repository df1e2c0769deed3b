"""`holdfast web`: the jobs of all supervisors that the user may see, live in a browser."""

from __future__ import annotations

import ipaddress
import os
import secrets
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import anyio
from holdfast_wire import private_files, regular_file

from supervisor.cli import output
from supervisor.cli.supervisor_discovery import add_place_arguments
from supervisor.config.launch_values import join_endpoint
from supervisor.config.values import plain
from supervisor.edges.machine.own_process import signals
from supervisor.edges.operators import http_server
from supervisor.errors import ConfigurationError, InvalidRequestError

DEFAULT_LISTEN = "127.0.0.1:8790"
TOKEN_MIN = 16  # characters
CONNECTIONS_MAX = 256
REQUEST_S = 10.0
LAST_ANSWERS_S = 2.0  # for what is under way when the command is stopped
EXAMPLES = """\
examples:
  holdfast web
  holdfast web --control                            # with buttons that stop and restart jobs
  ssh -L 8790:127.0.0.1:8790 NODE holdfast web      # then open the printed address on your own machine

Anybody with the token sees all jobs that you see. Only with --control can the page stop and restart them.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = RawDescriptionHelpFormatter, EXAMPLES
    parser.add_argument("--listen", metavar="H:P", default=DEFAULT_LISTEN, help="address (default: %(default)s)")
    parser.add_argument("--control", action="store_true", help="the page may stop and restart jobs and take stacks")
    parser.add_argument("--token-file", metavar="F", help="the token is in this file (default: a new one each time)")
    add_place_arguments(parser)


def execute(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    from supervisor.edges.peers.transport.own_address import is_meant_as_loopback

    host, port = _address(arguments.listen)
    token = _token(arguments.token_file)
    if not is_meant_as_loopback(host):
        power = ", and who reads the token can stop your jobs" if arguments.control else ""
        output.say(
            f"warning: {host} is not a loopback address: the token and all pages travel unencrypted{power}; "
            "better ssh -L"
        )
    return anyio.run(_serve, arguments, host, port, token)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(plain(port))
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        raise InvalidRequestError(f"cannot listen at {text!r}: it is not an address; write such as {DEFAULT_LISTEN}")
    return host, number


def _token(path: str | None) -> str:
    if path is None:
        return secrets.token_urlsafe(32)
    try:
        with regular_file.opened(Path(path), follows=True) as file:
            fault = private_files.secret_fault(Path(path), os.fstat(file.fileno()))
            token = file.read().decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"cannot read the token in {path}: {why}; check the file") from error
    if len(token) < TOKEN_MIN or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"cannot use the token in {path}: it is not one word of {TOKEN_MIN} characters or more; write such a secret"
        )
    if fault:
        raise ConfigurationError(f"cannot use the token in {path}: {fault}")
    return token


async def _serve(arguments: Namespace, host: str, port: int, token: str) -> int:
    from supervisor.cli.web_page.web_server import Site
    from supervisor.edges.machine.processes.logins import Logins

    listeners = await http_server.listen((host, port), what="a web page", flag="--listen")
    site = Site(arguments, token)
    serving = anyio.CancelScope()

    def stop(number: int) -> None:
        del number
        site.close()
        serving.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "SIGINT"), stop)
        tasks.start_soon(site.look_for_jobs)
        output.write(f"http://{join_endpoint(host, listeners[0].getsockname()[1])}/#token={token}\n")
        with serving:
            await http_server.serve(
                site.app, listeners, connections_max=CONNECTIONS_MAX, request_s=REQUEST_S,
                last_answers_s=LAST_ANSWERS_S, login_of=Logins().of,
            )  # fmt: skip
        tasks.cancel_scope.cancel()
    return 0
