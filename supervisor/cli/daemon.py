"""`holdfast daemon`: the node's supervisor in the foreground."""

from __future__ import annotations

import os
from collections.abc import Sequence

import anyio

from supervisor.config.daemon_settings import parse_daemon
from supervisor.edges.machine.own_process import standard_streams


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    settings = parse_daemon(argv, environ=os.environ)
    for warning in settings.warnings:
        standard_streams.say(f"holdfast: {warning}")
    from supervisor.daemon import serve_node  # A mistake on the command line is told without loading gRPC.

    return anyio.run(serve_node, settings, backend_options={"use_uvloop": True})
