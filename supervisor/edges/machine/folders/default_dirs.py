"""Which directories may a user take on any node where nothing was set up for that user?

Supervisors and commands try the same directories in the same order, so they meet without configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from supervisor.edges.machine.processes.home_folder import home_dir

SHARED_TEMPS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
RUNTIME_DIRS = Path("/run/user")  # one for each user who is logged in, even if XDG_RUNTIME_DIR is not set


def runtime_dirs(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns the directories that the system gives the user. They may not exist, and go when the user logs out."""
    found = [own] if (own := runtime_dir(environment)) is not None else []
    system = RUNTIME_DIRS / str(os.geteuid())
    return (*found, system) if system not in found else tuple(found)


def runtime_dir(environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns $XDG_RUNTIME_DIR; None if it is unset, or relative, which its specification forbids."""
    value = (os.environ if environment is None else environment).get("XDG_RUNTIME_DIR", "")
    return Path(value) if os.path.isabs(value) else None


def own_dirs(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns the user's own folder in each shared one, and last the one at home.

    Another user may have taken the name: check before use.
    """
    shared = tuple(place / f"holdfast-{os.geteuid()}" for place in SHARED_TEMPS)
    home = home_dir(environment)
    return shared if home is None else (*shared, home)


def temp_dirs(environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns places for a folder with a unique name: TMPDIR, the shared ones, those that come and go, and home_dir."""
    value = (os.environ if environment is None else environment).get("TMPDIR", "")
    chosen = (Path(value),) if os.path.isabs(value) else ()
    home = home_dir(environment)
    last = () if home is None else (home,)
    return tuple(dict.fromkeys((*chosen, *SHARED_TEMPS, *runtime_dirs(environment), *last)))
