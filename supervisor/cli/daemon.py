"""`holdfast daemon`: the node's supervisor in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import anyio

from supervisor.config.daemon_settings import parse_daemon
from supervisor.errors import HoldfastError


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code."""
    try:
        settings = parse_daemon(argv, environ=os.environ)
        for warning in settings.warnings:
            sys.stderr.write(f"holdfast: {warning}\n")
        from supervisor.daemon import serve_node  # A mistake on the command line is told without loading gRPC.

        return anyio.run(serve_node, settings, backend_options={"use_uvloop": True})
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return error.exit_code
