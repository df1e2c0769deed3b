"""Where does this rank's supervisor answer: that of `holdfast run`, a private one that runs already, or a new one?

Under plain python, torchrun or srun the first rank of the job that needs a private supervisor starts it; the others
find it in the directory that is named after the job. It is no child of any rank, outlives the one that started it and
ends with the last of them. If it dies before, private_successor.py starts another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from worker_client.endpoint import Endpoint, from_environment
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import (
    LOCK_FILE,
    find,
    job_folder,
    lives,
    locked,
    noted_ranks,
)
from worker_client.inprocess.private_supervisor.starting import start

START_TIMEOUT_S = 30.0


def find_or_start(environment: Mapping[str, str], *, start_timeout_s: float = START_TIMEOUT_S) -> Endpoint:
    """Returns where this rank's supervisor answers: that of `holdfast run`, or a private one, started if need be.

    Blocks until it answers. Raises InternalError, which says what is in the way.
    """
    given = from_environment(environment)
    if isinstance(given, Endpoint):
        return given
    if _number(environment, "WORLD_SIZE", 1) > _local_world_size(environment):
        raise InternalError(
            f"cannot start a private supervisor: the {environment['WORLD_SIZE']} ranks of this job are on several "
            "nodes, which is not supported yet; run all ranks on one node"
        )
    folder = job_folder(environment)
    with locked(folder.with_name(LOCK_FILE)):
        found = find(folder, environment)
        if found is not None:
            return found
        deadline_s = monotonic() + start_timeout_s
        return start(folder, environment, deadline_s, local_world_size=_local_world_size(environment))


def start_another(folder: Path, environment: Mapping[str, str], *, cancel: int) -> Endpoint | None:
    """Starts one in the place of a dead one. None where another rank is about to, or where the old one still lives.

    `cancel` is a descriptor: once it is readable, whatever was started ends. Blocks for START_TIMEOUT_S at most. Raises
    InternalError.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder.with_name(LOCK_FILE), waits=False))
        except BlockingIOError:
            return None
        found = find(folder, environment)
        if found is not None or lives(folder):
            return found
        return start(
            folder, environment, monotonic() + START_TIMEOUT_S,
            local_world_size=_local_world_size(environment), ranks=noted_ranks(folder), cancel=cancel,
        )  # fmt: skip


def _local_world_size(environment: Mapping[str, str]) -> int:
    world_size = _number(environment, "WORLD_SIZE", 1)
    nodes = _number(environment, "SLURM_NNODES", 1)
    return _number(environment, "LOCAL_WORLD_SIZE", max(1, world_size // nodes))


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default
