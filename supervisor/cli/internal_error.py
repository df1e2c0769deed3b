"""What does a user see of an internal error? One sentence, and a file with the rest."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from holdfast_wire import private_files

import supervisor
from supervisor.config.redaction import redacted, redacted_text
from supervisor.edges.machine.folders import default_dirs

REPORTS_KEPT = 20
FOLDER = "faults"


def told(error: Exception, arguments: Sequence[str]) -> str:
    """Returns the sentence. Writes the traceback to a file that belongs to the user."""
    error = alone(error)
    what = f"cannot run holdfast {arguments[0]}" if arguments else "cannot run holdfast"
    why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    path = _write(_report(error, arguments))
    where = f"its traceback is in {path}" if path is not None else "no file could be written for its traceback"
    return f"{what}: {why}; this is a fault of Holdfast or of this machine, please report it: {where}"


def alone(error: Exception) -> Exception:
    """Returns the only exception of a group of one."""
    inner = cast("Sequence[Exception]", getattr(error, "exceptions", ()))  # only groups have it
    return alone(inner[0]) if len(inner) == 1 else error


def _report(error: BaseException, arguments: Sequence[str]) -> str:
    lines = [
        f"holdfast {supervisor.__version__}, Python {sys.version.split()[0]}, {' '.join(os.uname())}",
        f"arguments: {' '.join(redacted(arguments))}",
        "",
        *traceback.format_exception(error),
    ]
    return redacted_text("\n".join(lines))


def _write(text: str) -> Path | None:
    for own in default_dirs.own_dirs():
        folder = own / FOLDER
        try:
            for place in (own, folder):
                private_files.make_folder(place)
                if private_files.folder_fault(place):
                    raise PermissionError(str(place))
            path = folder / f"{os.getpid()}-{os.urandom(4).hex()}.txt"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            _keep_newest(folder)
        except OSError:
            continue
        return path
    return None


def _keep_newest(folder: Path) -> None:
    found = sorted(folder.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    for path in found[:-REPORTS_KEPT]:
        path.unlink(missing_ok=True)
