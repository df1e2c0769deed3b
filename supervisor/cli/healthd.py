"""`holdfast healthd`: a node health service, compatible with nvhcd, in the foreground."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser, Namespace

import anyio

from supervisor.config.healthd_file import HealthdSettings, read_healthd_file
from supervisor.edges.machine.own_process import sd_notify, signals

_log = logging.getLogger("holdfast.healthd")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        "-config",
        metavar="F",
        required=True,
        help="YAML file: healthcheck_path, socket_path, timeout, log_level",
    )


def execute(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    settings = read_healthd_file(os.path.abspath(arguments.config))
    level = "warning" if settings.log_level == "warn" else settings.log_level
    logging.basicConfig(level=level.upper(), format="holdfast healthd: %(levelname)s: %(message)s")
    return anyio.run(_serve, settings, backend_options={"use_uvloop": True})


async def _serve(settings: HealthdSettings) -> int:
    from supervisor.edges.machine.health.healthd_service import serving  # A mistake in the file is told without it.

    stopped = anyio.Event()
    notifier = sd_notify.Notifier()

    def on_signal(number: int) -> None:
        del number
        stopped.set()

    async with serving(settings), anyio.create_task_group() as tasks:
        await tasks.start(signals.receive, ("SIGTERM", "SIGINT"), on_signal)
        _log.info("serving %s: each request runs %s", settings.socket_path, settings.healthcheck_path)
        if not os.access(settings.healthcheck_path, os.X_OK):
            _log.warning(
                "cannot run %s: it is not there, or may not be executed; until it may, the node counts as unhealthy: "
                "check healthcheck_path", settings.healthcheck_path,
            )  # fmt: skip
        notifier.ready(f"serving {settings.socket_path}")
        await stopped.wait()
        notifier.stopping()
        tasks.cancel_scope.cancel()
    notifier.close()
    return 0
