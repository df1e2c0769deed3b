"""How long does a command wait for a supervisor that does not answer, as the next one may be about to replace it?

A node's supervisor that was killed leaves spawners, each with files in the socket directory. As long as one of them
lives, systemd or an administrator is expected to start the next supervisor. Without one, the answer comes at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles

RETURNS_WITHIN_S = 10.0


def wait_for_next(folder: Path, control_socket: Path, say: Callable[[str], None]) -> bool | None:
    """Returns whether a supervisor answers in the end; None if none is awaited, since no spawner lives in `folder`."""
    if not _is_awaited(folder):
        return None
    from supervisor.edges.operators.control_client import ControlClient

    within = f"{RETURNS_WITHIN_S:g} s"
    say(f"no supervisor answers at {control_socket}, but its jobs run on; waiting up to {within} for the next one")
    with ControlClient(control_socket) as client:
        return client.wait_until_ready(RETURNS_WITHIN_S)


def _is_awaited(folder: Path) -> bool:
    if not os.path.isdir(folder):
        return False
    from supervisor.edges.workers.spawner import spawner_discovery  # Late: hardly any command needs it.

    return any(_has_live_spawner(files) for files in spawner_discovery.find_files(folder))


def _has_live_spawner(files: SpawnerFiles) -> bool:
    try:
        identity = files.identity()
    except OSError:  # its record is damaged
        identity = files.listener()
    return identity is not None and identity.is_alive
