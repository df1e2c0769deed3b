"""Where does what outlives a supervisor lie: the journal and the default logs?"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import ConfigurationError

STATE_DIR_VARIABLE = "HOLDFAST_STATE_DIR"


def find(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The first of flag, HOLDFAST_STATE_DIR, /var/lib/holdfast (root), $XDG_STATE_HOME/holdfast. Creates nothing."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(STATE_DIR_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/holdfast")
    home = variables.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(home) if os.path.isabs(home) else Path(variables.get("HOME") or Path.home()) / ".local" / "state"
    return base / "holdfast"


def make(path: Path) -> Path:
    """Create it with mode 0700, or check the one that is there. Raises ConfigurationError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"cannot use state directory {path}: {error.strerror or error}; choose another with --state-dir"
        ) from error
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"cannot use state directory {path}: it belongs to user id {found.st_uid}, not {os.geteuid()}; "
            "choose another with --state-dir"
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigurationError(f"cannot use state directory {path}: others may write to it; chmod 0700 {path}")
    return path


def default_log_dir(state_dir: Path) -> Path:
    """Below it: <job_id>/<run>/cycle_<c>/rank_<r>/{stdout,stderr}.log and <job_id>/<run>/supervisor.log."""
    return state_dir / "logs"
