"""`holdfast attribution`: a service that reads the logs of cycles and says why they ended, in the foreground."""

from __future__ import annotations

import ipaddress
import logging
import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path

import anyio

from supervisor.edges.machine.own_process import sd_notify, signals
from supervisor.errors import ConfigurationError, InvalidRequestError

DEFAULT_LISTEN = "127.0.0.1:50050"
KEY_VARIABLE = "LLM_API_KEY_FILE"
KEY_BYTES_MAX = 16_384
EXAMPLES = """\
examples:
  holdfast attribution --app-log-dir /lustre/job123
  curl -d '{"log_path": "/lustre/job123/train_cycle0.log"}' http://127.0.0.1:50050/logs
  curl 'http://127.0.0.1:50050/logs?log_path=/lustre/job123/train_cycle0.log&wait=true'

There is no authentication: everybody who reaches the address may ask.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--app-log-dir", metavar="DIR", required=True, help="logs below this folder may be analysed")
    parser.add_argument("--listen", metavar="H:P", default=DEFAULT_LISTEN, help="address (default: %(default)s)")
    parser.add_argument("--llm-base-url", metavar="URL", default="", help="also ask a model, at an API like OpenAI's")
    parser.add_argument("--llm-model", metavar="NAME", default="", help="which model")
    parser.add_argument("--llm-api-key-file", metavar="F", default="", help=f"its key (default: ${KEY_VARIABLE})")
    parser.add_argument("--export-url", metavar="URL", default="", help="post each result there as JSON")
    parser.add_argument("--log-level", choices=["debug", "info", "warning"], default="info")


def execute(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    address = listen_address(arguments.listen)
    folder = Path(arguments.app_log_dir)
    if not folder.is_dir():
        raise ConfigurationError(f"cannot analyse logs below {folder}: it is no folder; name one with --app-log-dir")
    if arguments.export_url and not arguments.export_url.startswith(("http://", "https://")):
        raise InvalidRequestError(f"cannot export to {arguments.export_url!r}: it is no http:// or https:// URL")
    logging.basicConfig(level=arguments.log_level.upper(), format="holdfast attribution: %(levelname)s: %(message)s")
    return anyio.run(_serve, arguments, address, folder, backend_options={"use_uvloop": True})


def listen_address(text: str) -> tuple[str, int]:
    """Raises InvalidRequestError where it is no single address: without authentication, all of them are too many."""
    host, _, port = text.rpartition(":")
    try:
        number = int(port)
        is_all = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]")).is_unspecified
    except ValueError:
        raise InvalidRequestError(f"cannot listen at {text!r}: it is no address; write {DEFAULT_LISTEN}") from None
    if is_all:
        raise InvalidRequestError(
            f"cannot listen at {text}: everybody who reaches this machine could ask; name one address, such as "
            f"{DEFAULT_LISTEN}"
        )
    return host.strip("[]"), number


def read_key(path: str) -> str:
    """Raises ConfigurationError where the file can't be read or is empty."""
    if not path:
        raise ConfigurationError(
            f"cannot ask a language model: no key is given; set --llm-api-key-file or the variable {KEY_VARIABLE}"
        )
    try:
        with open(path, encoding="utf-8") as file:
            key = file.read(KEY_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"cannot read the language model's key {path}: {why}; check the file") from error
    if not key:
        raise ConfigurationError(f"cannot read the language model's key {path}: the file is empty; check it")
    return key


async def _serve(arguments: Namespace, address: tuple[str, int], folder: Path) -> int:
    from supervisor.attribution import service
    from supervisor.attribution.analyses import Analyses
    from supervisor.attribution.language_model import LanguageModel, ModelSettings

    model = None
    if arguments.llm_base_url:
        key = read_key(arguments.llm_api_key_file or os.environ.get(KEY_VARIABLE, ""))
        model = LanguageModel(ModelSettings(arguments.llm_base_url, arguments.llm_model, key))
    analyses = Analyses(folder, model)
    stopped = anyio.Event()
    notifier = sd_notify.Notifier()

    def on_signal(number: int) -> None:
        del number
        stopped.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "SIGINT"), on_signal)
        await tasks.start(partial(service.serve, analyses, address, export_url=arguments.export_url))
        logging.getLogger("holdfast.attribution").info("serving http://%s:%d for logs below %s", *address, folder)
        notifier.ready(f"serving {arguments.listen}")
        await stopped.wait()
        notifier.stopping()
        tasks.cancel_scope.cancel()
    notifier.close()
    return 0
