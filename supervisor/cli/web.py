"""`holdfast web`: the jobs of all supervisors that the user may see, live in a browser."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from holdfast_wire import private_files

from supervisor.cli import output
from supervisor.cli.supervisors import add_place_arguments
from supervisor.edges.machine import records
from supervisor.edges.machine.own_process import signals
from supervisor.errors import ConfigurationError, InvalidRequestError

if TYPE_CHECKING:
    import uvicorn

DEFAULT_LISTEN = "127.0.0.1:8790"
TOKEN_MIN = 16  # characters
LAST_ANSWERS_S = 2  # for what is under way when the command is stopped
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
    try:
        for name in ("starlette", "uvicorn"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"cannot serve a web page: module {error.name} is not installed for {sys.executable}; install "
            "holdfast-torch with its extra [web]: in a clone, pip install '.[supervisor,web]'"
        ) from error
    if not is_meant_as_loopback(host):
        power = ", and who reads the token can stop your jobs" if arguments.control else ""
        output.say(
            f"warning: {host} is no loopback address: the token and all pages travel unencrypted{power}; better ssh -L"
        )
    return anyio.run(_serve, arguments, host, port, token)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(port)
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        raise InvalidRequestError(f"cannot listen at {text!r}: it is no address; write such as {DEFAULT_LISTEN}")
    return host, number


def _token(path: str | None) -> str:
    if path is None:
        return secrets.token_urlsafe(32)
    try:
        with records.opened(Path(path), follows=True) as file:
            fault = private_files.secret_fault(Path(path), os.fstat(file.fileno()))
            token = file.read().decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"cannot read the token in {path}: {why}; check the file") from error
    if len(token) < TOKEN_MIN or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"cannot use the token in {path}: it is not one word of {TOKEN_MIN} characters or more; write such a secret"
        )
    if fault:
        raise ConfigurationError(f"cannot use the token in {path}: {fault}")
    return token


async def _serve(arguments: Namespace, host: str, port: int, token: str) -> int:
    import socket

    import uvicorn

    from supervisor.cli.site.connections import BACKLOG, Connections
    from supervisor.cli.site.serving import Site
    from supervisor.edges.machine.processes.logins import Logins

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot serve a web page at {host}:{port}: {error.strerror}; name another address with --listen"
        ) from error
    site = Site(arguments, token)
    config = uvicorn.Config(
        site.app(), log_level="error",  # Whatever a stranger sends, the terminal shows nothing of it.
        ws="none", access_log=False, lifespan="off", server_header=False, date_header=False,
        proxy_headers=False,  # A local program must not tell us another address than its own.
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )  # fmt: skip
    server = _server(config)
    connections = Connections(listener, server, Logins().of)
    accepting = anyio.CancelScope()
    shown = f"[{host}]" if ":" in host else host

    def stop(number: int) -> None:
        del number
        accepting.cancel()
        site.close()
        server.should_exit = True

    async def accept() -> None:
        with listener, accepting:
            await connections.run()

    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "SIGINT"), stop)
        tasks.start_soon(site.look_for_jobs)
        output.write(f"http://{shown}:{listener.getsockname()[1]}/#token={token}\n")
        tasks.start_soon(accept)
        await server.serve(sockets=[])
        tasks.cancel_scope.cancel()
    return 0


def _server(config: uvicorn.Config) -> uvicorn.Server:
    """Returns a server that leaves our signals alone."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    return Server(config)
