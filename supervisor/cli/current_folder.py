"""In which folder was the command typed, if it still exists?"""

from __future__ import annotations

import os


def current_folder() -> str:
    """Returns the current folder; "" if it was removed: a job still runs in it, as it would without us."""
    try:
        return os.getcwd()
    except OSError:
        return ""
