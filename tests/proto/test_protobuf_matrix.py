"""Does the client run with any protobuf that the user's training stack has, from 3.20 to 7?"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RUNTIMES = ["3.20.3", "4.25.8", "5.29.5", "6.31.1", "7.36.2"]
# Installed runtimes are kept here between runs; they may be deleted at any time.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-tests" / "protobuf"


@contextmanager
def _one_at_a_time() -> Generator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(version: str) -> Path:
    """Returns a folder with only this runtime."""
    target = CACHE / f"{sys.implementation.cache_tag}-{version}"
    with _one_at_a_time():
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
                subprocess.run([*pip, "--target", f"{folder}/site", f"protobuf=={version}"], check=True, timeout=100)
                shutil.move(f"{folder}/site", target)
    return target


def _round_trip(site: Path) -> dict[str, object]:
    command = [sys.executable, "-I", "-S", "-W", "error", str(HERE / "round_trip.py"), str(ROOT), str(HERE / "golden")]
    done = subprocess.run([*command, str(site)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", RUNTIMES)
def test_client_and_stubs_on_this_runtime(version: str):
    assert _round_trip(_installed(version)) == {
        "protobuf": version,
        "loaded": [],
        "heartbeats": 2,
        "open": [0],
        "limits": True,
        "control": [1, "why"],
    }
