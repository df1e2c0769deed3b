"""`holdfast attribution`: a service that reads the logs of cycles and says why they ended, in the foreground."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path

import anyio

from supervisor.config.attribution_settings import EXPORT_VARIABLE, KEY_VARIABLE, MANAGED_ADDRESS, NO_MODEL, read_key
from supervisor.config.redaction import redacted_url
from supervisor.config.values import plain
from supervisor.edges.machine.own_process import sd_notify, signals
from supervisor.edges.operators import http_server
from supervisor.errors import ConfigurationError, InvalidRequestError

DEFAULT_LISTEN = "{}:{}".format(*MANAGED_ADDRESS)
NICENESS = 10  # of one that a supervisor has started: training comes first
EXAMPLES = """\
examples:
  holdfast attribution --app-log-dir /lustre/job123
  curl -d '{"log_path": "/lustre/job123/train_cycle0.log"}' http://127.0.0.1:50050/logs
  curl 'http://127.0.0.1:50050/logs?log_path=/lustre/job123/train_cycle0.log&wait=true'

At a loopback address, only your own processes and root's may ask. There is no authentication: at another address that
--listen names, anyone who can reach it may.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--app-log-dir", metavar="DIR", required=True, help="logs below this folder may be analysed")
    parser.add_argument("--listen", metavar="H:P", default=DEFAULT_LISTEN, help="address (default: %(default)s)")
    parser.add_argument("--llm-base-url", metavar="URL", default="", help="also ask a model, at an API like OpenAI's")
    parser.add_argument("--llm-model", metavar="NAME", default="", help=f"which model; {NO_MODEL}: none")
    parser.add_argument("--llm-api-key-file", metavar="F", default="", help=f"its key (default: ${KEY_VARIABLE})")
    parser.add_argument(
        "--export-url", metavar="URL", default="", help=f"post each result there as JSON (default: ${EXPORT_VARIABLE})"
    )
    parser.add_argument("--log-file", metavar="F", default="", help="append messages to this file (default: stderr)")
    parser.add_argument("--parent-fd", type=int, default=None, help=SUPPRESS)  # of a supervisor that has started it
    parser.add_argument("--log-level", choices=["debug", "info", "warning"], default="info")


def execute(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    address = listen_address(arguments.listen)
    if arguments.log_file:
        _write_to(arguments.log_file)
    folder = Path(arguments.app_log_dir)
    if not os.path.isdir(folder):
        raise ConfigurationError(f"cannot analyse logs below {folder}: it is not a folder; name one with --app-log-dir")
    export_url = arguments.export_url or os.environ.get(EXPORT_VARIABLE, "")
    if export_url and not export_url.startswith(("http://", "https://")):
        raise InvalidRequestError(
            f"cannot export to {redacted_url(export_url)!r}: it is not an http:// or https:// URL; write one with "
            "--export-url"
        )
    logging.basicConfig(level=arguments.log_level.upper(), format="holdfast attribution: %(levelname)s: %(message)s")
    return anyio.run(_serve, arguments, address, folder, export_url, backend_options={"use_uvloop": True})


def listen_address(text: str) -> tuple[str, int]:
    """Raises InvalidRequestError unless it is one address: without authentication, all addresses are too many."""
    host, _, port = text.rpartition(":")
    try:
        number = int(plain(port))
        is_all = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]")).is_unspecified
    except ValueError:
        raise InvalidRequestError(f"cannot listen at {text!r}: it is not an address; write {DEFAULT_LISTEN}") from None
    if is_all:
        raise InvalidRequestError(
            f"cannot listen at {text}: anyone who can reach this machine could use it; name one address, such as "
            f"{DEFAULT_LISTEN}"
        )
    return host.strip("[]"), number


def _write_to(path: str) -> None:
    """Sends all output of this process to the file from now on. Raises ConfigurationError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {path}: {error.strerror}; name another file with --log-file"
        ) from error
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


async def _serve(arguments: Namespace, address: tuple[str, int], folder: Path, export_url: str) -> int:
    from supervisor.edges.machine.processes.logins import Logins
    from supervisor.edges.peers.transport.own_address import is_meant_as_loopback
    from supervisor.edges.services.parent_link import ParentLink
    from supervisor.programs.attribution import service
    from supervisor.programs.attribution.language_model import LanguageModel, ModelSettings

    parent = None
    if arguments.parent_fd is not None:
        parent = ParentLink(arguments.parent_fd)
        os.nice(NICENESS)
    model = None
    if arguments.llm_base_url and arguments.llm_model != NO_MODEL:
        key = read_key(arguments.llm_api_key_file or os.environ.get(KEY_VARIABLE, ""), flags="--llm")
        model = LanguageModel(ModelSettings(arguments.llm_base_url, arguments.llm_model, key))
    listeners, (host, port) = await _listen(address, may_move=parent is not None)
    stopped = anyio.Event()
    notifier = sd_notify.Notifier()

    def on_signal(number: int) -> None:
        del number
        stopped.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "SIGINT"), on_signal)
        if parent is not None:
            tasks.start_soon(parent.await_end, stopped.set)
        serve = partial(
            service.serve, folder, model, listeners, stopped, export_url=export_url,
            is_private=is_meant_as_loopback(host), login_of=Logins().of,
        )  # fmt: skip
        async with anyio.create_task_group() as serving:
            await serving.start(serve)
            logging.getLogger("holdfast.attribution").info("serving http://%s:%d for logs below %s", host, port, folder)
            notifier.ready(f"serving {host}:{port}")
            if parent is not None:
                parent.say_where(host, port)
            await stopped.wait()
            notifier.stopping()
        tasks.cancel_scope.cancel()
    notifier.close()
    return 0


async def _listen(address: tuple[str, int], *, may_move: bool) -> tuple[list[socket.socket], tuple[str, int]]:
    """Listens at the address, or with `may_move` at a free port if its port is taken. Raises ConfigurationError."""
    listen = partial(http_server.listen, what="attribution", flag="--listen")
    try:
        listeners = await listen(address)
    except ConfigurationError as error:
        if not may_move:
            raise
        logging.getLogger("holdfast.attribution").warning("%s; another port is taken", error)
        listeners = await listen((address[0], 0))
    return listeners, (address[0], listeners[0].getsockname()[1])
