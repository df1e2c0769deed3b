"""In which folder was the command typed, if it still exists?"""

from __future__ import annotations

import os


def current_folder() -> str:
    """Returns the current folder; "" if it was removed: without a node's supervisor, a job still runs in it."""
    try:
        return os.getcwd()
    except OSError:
        return ""
