"""Which paths does --ft-storage-health-check-path name?"""

from __future__ import annotations

import os

from supervisor.config.values import Kind, Shape, ValueProblem, show_list

PATHS_MAX = 64
PATH_BYTES_MAX = 4095
_EXAMPLE = "/data/checkpoints,/mnt/dataset"


def parse_paths(text: str) -> tuple[str, ...]:
    """Reads absolute paths separated by commas, each once; "" is none. Raises ValueProblem."""
    paths = tuple(dict.fromkeys(path for part in text.split(",") if (path := part.strip())))
    if text.strip() and not paths:
        raise ValueProblem("it names no path", f"write paths such as {_EXAMPLE}")
    for path in paths:
        if not path.startswith("/"):
            raise ValueProblem(f"'{path}' is not an absolute path", f"write paths such as {_EXAMPLE}")
        if "\0" in path or len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise ValueProblem(f"a path has at most {PATH_BYTES_MAX} bytes and no NUL", f"write such as {_EXAMPLE}")
    if len(paths) > PATHS_MAX:
        raise ValueProblem(f"{len(paths)} paths are more than {PATHS_MAX}", "name the folders that they lie in")
    return paths


PATHS = Kind("PATH,...", "", Shape.TEXT, parse_paths, show_list)
