"""Runs a command on its own terminal and returns its output."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

COLUMNS, LINES = 93, 37


def on_terminal(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    type_after: tuple[bytes, bytes] = (b"", b""),
    timeout_s: float = 90,
) -> tuple[int, bytes]:
    """Returns (exit code, output). The terminal is standard input, output and error, and controls the session.

    `type_after`: once the output contains the first text, the second is typed.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    try:
        process = subprocess.Popen(
            ["setsid", "--ctty", *argv], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=dict(env)
        )
    finally:
        os.close(theirs)
    wanted, keys = type_after
    output = b""
    deadline_s = time.monotonic() + timeout_s
    try:
        while part := _read(ours, deadline_s - time.monotonic()):
            output += part
            if keys and wanted in output:
                os.write(ours, keys)
                keys = b""
        return process.wait(max(0.1, deadline_s - time.monotonic())), output
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def _read(terminal: int, timeout_s: float) -> bytes:
    """Returns the next bytes; none once nobody has the other side open."""
    poller = select.poll()
    poller.register(terminal, select.POLLIN)
    assert poller.poll(max(0.0, timeout_s) * 1000), "the command did not end on its terminal in time"
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:  # this is how a terminal reports that its other side is closed
            raise
        return b""
