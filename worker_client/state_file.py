"""Where are calculated timeouts kept between runs, and how does a job's script learn that training is complete?"""

from __future__ import annotations

import json
import os
from pathlib import Path

from worker_client.errors import RankMonitorClientError
from worker_client.guarded_log import GuardedLog
from worker_client.rank_monitor_client import RankMonitorClient

STATE_FILE = "_ft_state_.json"
FINISHED_VARIABLE = "FAULT_TOL_FINISHED_FLAG_FILE"

log = GuardedLog("holdfast")


def load(client: RankMonitorClient, folder: Path) -> None:
    """Loads the timeouts of an earlier run into the client; warns about a file that can't be used and ignores it."""
    path = folder / STATE_FILE
    try:
        client.load_state_dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RankMonitorClientError) as error:
        log.warning("cannot load learned timeouts from %s: %s", path, error)


def save(client: RankMonitorClient, folder: Path) -> None:
    """Writes the client's timeouts, completely or not at all. Call on one rank; a full disk does not end training."""
    path = folder / STATE_FILE
    draft = path.with_name(f".{STATE_FILE}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(client.state_dict(), indent=2))
        draft.replace(path)
    except OSError as error:
        log.warning("cannot save learned timeouts in %s: %s", path, error)


def mark_finished() -> None:
    """Creates the file that tells the job's script not to start another run, if the script named one."""
    name = os.environ.get(FINISHED_VARIABLE)
    if not name:
        return
    try:
        Path(name).touch()
    except OSError as error:
        log.warning("cannot mark the training as finished in %s: %s", name, error)
