"""`holdfast daemon`: the node's supervisor in the foreground."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import anyio

from supervisor.cli.event_handlers import event_handlers
from supervisor.config.daemon_settings import parse_daemon
from supervisor.edges.machine.own_process import ignored_signals, standard_streams


def execute_argv(argv: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises HoldfastError."""
    settings = parse_daemon(argv, environ=os.environ)
    for warning in settings.warnings:
        standard_streams.say(f"holdfast: {warning}")
    # Jobs do not depend on how this process was started: under nohup, or in a script's background.
    ignored_signals.reset_in_children(("SIGHUP", "SIGINT", "SIGQUIT"))
    if settings.user_service.users:
        from supervisor.wiring.users_daemon import serve_users

        reread = partial(parse_daemon, argv, environ=dict(os.environ))
        return anyio.run(serve_users, settings, reread, backend_options={"use_uvloop": True})
    # Late: a mistake on the command line is told without loading gRPC.
    from supervisor.wiring.daemon_services import serve_node

    with ExitStack() as stack:
        handlers = event_handlers(settings.event_hooks, stack)
        return anyio.run(serve_node, settings, handlers, backend_options={"use_uvloop": True})
