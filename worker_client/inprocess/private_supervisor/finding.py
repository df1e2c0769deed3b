"""Where does this rank's supervisor answer: that of `holdfast run`, a private one that runs already, or a new one?

Under plain python, torchrun or srun the first rank of the job that needs a private supervisor starts it; the others
find it in the directory that is named after the job. It is no rank's child, outlives the one that started it and
ends with the last of them. If it dies before, private_successor.py starts another.
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
NODES_TIMEOUT_S = 600.0  # of a start that waits for those of other nodes
TURN_MARGIN_S = 5.0  # A rank whose turn lasts longer than a start may take is stopped: it is passed over.
LOOK_AGAIN_MIN_S = 0.25  # at one that lives and can't be found: it starts or ends, or is stopped
LOOK_AGAIN_MAX_S = 8.0

_met: set[Path] = set()  # of the jobs whose nodes this process has met


def find_or_start(
    environment: Mapping[str, str],
    open_store: Callable[[], Any] | None = None,
    *,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Endpoint:
    """Returns where this rank's supervisor answers: that of `holdfast run`, or a private one, started if need be.

    On several nodes, the private ones find each other through the store that `open_store` opens on all ranks.
    Blocks until it answers. Raises InternalError, which says what is in the way.
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
    """Returns what another rank has started meanwhile, or what this one starts now."""
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
    """Starts one in the place of a dead one, or waits for another rank that does. None where the old one still lives.

    `cancel` is a descriptor: once it is readable, what was started ends. Blocks for START_TIMEOUT_S at most, and as
    long for another rank's start. Raises InternalError.
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
