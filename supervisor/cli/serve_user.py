"""`holdfast serve-user`: the supervisor of one user of a node's service, which root's process starts as that user."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

import anyio
import msgspec

from supervisor.config.daemon_settings import parse_daemon
from supervisor.config.user_service import UserService


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until it is let go; returns the exit code. Raises HoldfastError."""
    parser = ArgumentParser(prog="holdfast serve-user", allow_abbrev=False, add_help=False)
    parser.add_argument("--door-fd", type=int, required=True)
    given, rest = parser.parse_known_args(argv)
    settings = parse_daemon(rest, environ={})
    settings = msgspec.structs.replace(settings, user_service=UserService(door_fd=given.door_fd))
    from supervisor.node_service import serve_node

    return anyio.run(serve_node, settings, backend_options={"use_uvloop": True})
