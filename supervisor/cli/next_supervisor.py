"""How long does a command wait for a supervisor that does not answer, as the next one may be about to replace it?

A node's supervisor that was killed leaves spawners, each with files in the socket directory. As long as one of them
lives, systemd or an administrator is expected to start the next supervisor. Without one, the answer comes at once.
A command with a /tmp of its own reaches that directory all the same, although it sees no claim.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_wire import private_files, socket_user

from supervisor.edges.machine.folders import socket_dir

if TYPE_CHECKING:
    from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles, SpawnerIdentity

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


def may_have_left(directory: Path, job_id: str) -> bool:
    """Returns whether this user's supervisor that is lost in `directory` may have left a spawner of the job.

    A service for several users has a directory for each of them in its own. If a container does not see what is mounted
    on this user's, that may hold a spawner, too.
    """
    of_users = tuple((directory / socket_dir.USERS).glob(f"*/{socket_dir.OWN}"))
    own = [each for each in of_users if not private_files.folder_fault(each)]  # Root asks nothing in another user's.
    if any(_may_be_hidden(each, has_own=bool(own)) for each in of_users if each not in own):
        return True
    found = (each for path in (directory, *own) for each in _spawners(path / socket_dir.SPAWNERS))
    return any(each.job_id == job_id and each.may_be_alive for each in found)


def _may_be_hidden(folder: Path, *, has_own: bool) -> bool:
    """Returns whether this may be our directory, of which only root's folder below the mount is seen.

    `has_own`: one that is certainly ours is seen.
    """
    if folder.parent.name.startswith(f"{os.geteuid()}."):
        return True
    return not has_own and socket_user.is_unmapped(folder.lstat().st_uid)


def _is_awaited(folder: Path) -> bool:
    return any(each.is_alive for each in _spawners(folder))


def _spawners(folder: Path) -> Iterator[SpawnerIdentity]:
    """Yields the spawners that have files there, live and dead."""
    if private_files.folder_fault(folder):  # Such as: no such file.
        return
    from supervisor.edges.workers.spawner import spawner_discovery  # Late: hardly any command needs it.

    yield from filter(None, map(_identity, spawner_discovery.find_files(folder)))


def _identity(files: SpawnerFiles) -> SpawnerIdentity | None:
    try:
        return files.identity()
    except OSError:  # Its record is damaged. A connection would be taken for a supervisor that returns.
        return files.survivor()
