"""In which folder does this process run, if it still exists?"""

from __future__ import annotations

import os


def current() -> str:
    """Returns the current folder; "" if it was removed: the job still runs in it, as it would without us."""
    try:
        return os.getcwd()
    except OSError:
        return ""
