"""Where does this rank's supervisor answer: that of `holdfast run`, a private one that runs already, or a new one?

Under plain python, torchrun or srun, the job's first rank that needs a private supervisor starts it; the others find it
in the directory named after the job. It is not a rank's child, outlives the rank that started it and ends with the
last of them. If it dies earlier, private_successor.py starts another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from worker_client.endpoint import Endpoint, from_environment
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor.job_folder import (
    find,
    has_attempt,
    job_folder,
    launch_key,
    lives,
    note_attempt,
    wait_for_its_end,
)
from worker_client.inprocess.private_supervisor.node_meeting import NodeMeeting
from worker_client.inprocess.private_supervisor.starters_turn import CancelledWaitError, starters_turn
from worker_client.inprocess.private_supervisor.starting import NotServing, start
from worker_client.job_nodes import has_other_nodes

START_TIMEOUT_S = 30.0
NODES_TIMEOUT_S = 600.0  # for a start that waits for other nodes
TURN_MARGIN_S = 5.0  # A rank whose turn exceeds the time for a start by this much is stopped, so it is skipped.
LOOK_AGAIN_MIN_S = 0.25  # pause if a supervisor lives but can't be reached: it is starting, ending or stopped
LOOK_AGAIN_MAX_S = 8.0

_met: set[Path] = set()  # folders of the jobs whose nodes this process has met


def find_or_start(
    environment: Mapping[str, str],
    open_store: Callable[[], Any] | None = None,
    *,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Endpoint:
    """Returns where this rank's supervisor answers: that of `holdfast run`, or a private one, started if necessary.

    On several nodes, private supervisors find each other through the store that `open_store` opens on all ranks.
    Blocks until the supervisor answers. Raises InternalError, which names the obstacle.
    """
    given = from_environment(environment)
    if isinstance(given, Endpoint):
        return given
    if open_store is None or not has_other_nodes(environment) or _has_met(environment):
        return _find_or_start(job_folder(environment), environment, start_timeout_s)
    meeting = NodeMeeting(environment, launch_key(environment), open_store)
    note_attempt(environment, meeting.attempt)
    folder = job_folder(environment)
    found = _find_or_start(folder, environment, NODES_TIMEOUT_S, meeting)
    meeting.conclude()
    _met.add(folder)
    return found


def _has_met(environment: Mapping[str, str]) -> bool:
    return has_attempt(environment) and job_folder(environment) in _met


def _find_or_start(
    folder: Path, environment: Mapping[str, str], start_timeout_s: float, meeting: NodeMeeting | None = None
) -> Endpoint:
    deadline_s = monotonic() + start_timeout_s
    pause_s = LOOK_AGAIN_MIN_S
    while True:
        found = find(folder, environment) or _in_turn(folder, environment, start_timeout_s, meeting)
        if isinstance(found, Endpoint):
            return found
        if monotonic() >= deadline_s:
            raise InternalError(f"cannot start a private supervisor: {found.why}")
        wait_for_its_end(folder, pause_s)
        pause_s = min(2 * pause_s, LOOK_AGAIN_MAX_S)


def _in_turn(
    folder: Path, environment: Mapping[str, str], start_timeout_s: float, meeting: NodeMeeting | None
) -> Endpoint | NotServing:
    """Returns the supervisor that another rank has started meanwhile, or starts one now."""
    with starters_turn(folder, wait_s=start_timeout_s + TURN_MARGIN_S) as turn:
        found = find(folder, environment)
        if found is not None:
            return found
        if lives(folder):
            return NotServing(f"the one of this job, which serves {folder}, does not answer; see whether it is stopped")
        deadline_s = monotonic() + start_timeout_s
        return start(folder, environment, deadline_s, turn=turn, is_successor=folder in _met, meeting=meeting)


@dataclass(frozen=True, slots=True)
class Successor:
    endpoint: Endpoint
    is_ours: bool  # started by this rank, just now


def start_another(folder: Path, environment: Mapping[str, str], *, cancel: int) -> Successor | None:
    """Replaces a dead supervisor, or waits for another rank that does. Returns None if the old one is still alive.

    `cancel` is a descriptor: once it is readable, what was started ends. Blocks for START_TIMEOUT_S at most, plus the
    same for another rank's start. Raises InternalError.
    """
    try:
        with starters_turn(folder, wait_s=START_TIMEOUT_S + TURN_MARGIN_S, cancel=cancel) as turn:
            found = find(folder, environment)
            if found is not None:
                return Successor(found, is_ours=False)
            if lives(folder):
                return None
            started = start(
                folder, environment, monotonic() + START_TIMEOUT_S,
                turn=turn, is_successor=True, cancel=cancel,
            )  # fmt: skip
    except CancelledWaitError:
        return None
    return Successor(started, is_ours=True) if isinstance(started, Endpoint) else None
