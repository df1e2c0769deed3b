"""A copy of the sources in another folder, as another person at another time would have it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".git", ".venv*", "dist", "build", "tests", "docs", "*.sock", ".*_cache"
)
MANUAL_PAGES = "docs/man"  # all of docs/ that the packages have


def copied(to: Path, *, changed_at_s: int, sources: Path = ROOT) -> Path:
    shutil.copytree(sources, to, ignore=LEFT_OUT)
    shutil.copytree(sources / MANUAL_PAGES, to / MANUAL_PAGES)
    for path in to.rglob("*"):
        os.utime(path, (changed_at_s, changed_at_s))
        path.chmod(path.stat().st_mode & ~0o022 if changed_at_s % 2 else path.stat().st_mode | 0o020)
    return to
