"""What did the training script's own exception say? Reads what torch's @record writes to TORCHELASTIC_ERROR_FILE."""

from __future__ import annotations

import json
import os
import stat

VARIABLE = "TORCHELASTIC_ERROR_FILE"
FILE_BYTES_MAX = 1024 * 1024
LINE_CHARACTERS_MAX = 500


def read(path: str) -> tuple[str, float | None] | None:
    """Returns one line, and when it was written (Unix seconds); None if the file has no message. Never raises."""
    content = read_bounded(path, FILE_BYTES_MAX) if path else None
    if content is None:
        return None
    data, modified_at_unix_s = content
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    line, written_at_unix_s = _line_and_time(body)
    if not line:
        return None
    # torch writes whole seconds; if the file's own time agrees with them, it is more precise.
    if written_at_unix_s is None or written_at_unix_s <= modified_at_unix_s < written_at_unix_s + 2:
        return line, modified_at_unix_s
    return line, written_at_unix_s


def read_bounded(path: str, bytes_max: int) -> tuple[bytes, float] | None:
    """Returns content and modification time of a small regular file; None for anything else. Never blocks on a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
            return None
        return os.read(descriptor, bytes_max), found.st_mtime
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_end(path: str, bytes_max: int) -> bytes:
    """Returns the last bytes of a regular file; nothing if it can't be read. Never raises."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if path else -1
    except (OSError, ValueError):
        return b""
    if descriptor < 0:
        return b""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b""
        return os.pread(descriptor, bytes_max, max(0, found.st_size - bytes_max))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _line_and_time(body: object) -> tuple[str, float | None]:
    """Reads `{"message": {"message": …, "extraInfo": {"timestamp": …}}}`, or a string at either place."""
    written_at_unix_s: float | None = None
    message = body
    for _ in range(2):
        if not isinstance(message, dict):
            break
        extra: object = message.get("extraInfo")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(extra, dict):
            written_at_unix_s = _time(extra.get("timestamp"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        message = message.get("message")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(message, str):
        return "", None
    return _one_line(message), written_at_unix_s


def _one_line(text: str) -> str:
    """Returns the most telling line: the last of a traceback, else the first that is not empty."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith("Traceback (most recent call last)") else lines[0]
    printable = "".join(each if each.isprintable() else " " for each in line)
    return printable if len(printable) <= LINE_CHARACTERS_MAX else printable[: LINE_CHARACTERS_MAX - 1] + "…"


def _time(value: object) -> float | None:
    """Returns a number, also from its text; None for anything else."""
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < float("inf") else None
