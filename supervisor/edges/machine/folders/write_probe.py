"""Can a small file be written in this directory now?"""

from __future__ import annotations

import os
from pathlib import Path

PROBE = ".probe-"  # how the name of one begins
PROBE_BYTES = 4096  # one block: a full disk has none left


def write(path: Path) -> None:
    """Raises OSError if no small file can be written: the disk is full or read-only, or rights are missing."""
    probe = path / f"{PROBE}{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"\0" * PROBE_BYTES)
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


def remove_left(path: Path) -> None:
    """Removes the probes that processes left when they were killed. Raises OSError."""
    for probe in path.glob(f"{PROBE}*"):
        probe.unlink(missing_ok=True)
