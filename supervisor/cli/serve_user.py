"""`holdfast serve-user`: with which settings does a user's supervisor serve, which root's service starts as that user?

With --instance it is still root: in the unit of that name, it becomes the user that root's process has noted.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from supervisor.config.daemon_settings import parse_daemon
from supervisor.config.user_service import UserService
from supervisor.errors import InvalidRequestError


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until it is released; returns the exit code. Raises HoldfastError."""
    parser = ArgumentParser(prog="holdfast serve-user", allow_abbrev=False, add_help=False)
    parser.add_argument("--door-fd", dest="handover_fd", type=int)
    parser.add_argument("--service-dir", type=Path, default=Path("/run/holdfast"))
    parser.add_argument("--instance")
    given, rest = parser.parse_known_args(argv)
    if given.instance is not None:
        from supervisor.edges.users import unit_start

        unit_start.execute(given.service_dir, given.instance)
    if given.handover_fd is None:
        raise InvalidRequestError("cannot serve a user: holdfast daemon --users starts this command; run that")
    settings = parse_daemon(rest, environ={})
    settings = msgspec.structs.replace(settings, user_service=UserService(handover_fd=given.handover_fd))
    from supervisor.wiring.daemon_services import serve_node

    return anyio.run(serve_node, settings, backend_options={"use_uvloop": True})
