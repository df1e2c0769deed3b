"""Does a module record its rank when it is loaded? Loaded ahead, it would record the same wrong rank for all ranks.

Most such modules are left to the workers. A few known ones get their rank set in each worker.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

# Variables that are set for each worker or cycle, but not for the interpreter that loads ahead.
_OF_A_WORKER = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?RANK|ROLE_NAME|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|HOLDFAST_(SOCKET|TOKEN_FILE|CYCLE)|FT_(RANK_MONITOR|LAUNCHER)_IPC_SOCKET|NVRX_CURRENT_CYCLE_INFO"
)
# Modules that read such variables when loaded, and only do with them what is repeated below.
_KNOWN = frozenset(
    {
        "fsspec.config",  # reads all that there are, and takes its own
        "lightning.fabric.utilities.rank_zero",
        "lightning_fabric.utilities.rank_zero",
        "torchmetrics.utilities.prints",
    }
)
# (module, its function with the attribute `rank`, the variable that is noted there)
_NOTED = (
    ("lightning_utilities.core.rank_zero", "rank_zero_only", "RANK"),
    ("torchmetrics.utilities.prints", "rank_zero_only", "LOCAL_RANK"),
)
_ON_THE_WAY = ("os", "_collections_abc", "collections.abc")


@contextmanager
def watched() -> Generator[dict[str, str]]:
    """Yields the worker variables that are read meanwhile, each with the module that reads it first."""
    environ = type(os.environ)
    read: dict[str, str] = {}
    get = environ.__getitem__

    def look_and_get(self: os._Environ[str], key: str) -> str:  # pyright: ignore[reportPrivateUsage] - it has no other
        if _OF_A_WORKER.fullmatch(name := str(key)):
            module = _reader(sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - inspect would be loaded for it
            if module not in _KNOWN:
                read.setdefault(name, module)
        return get(self, key)

    environ.__getitem__ = look_and_get
    try:
        yield read
    finally:
        environ.__getitem__ = get


def tell_ranks() -> None:
    """Sets, in a worker with its variables, what known modules would have recorded."""
    for module, function, variable in _NOTED:
        noted = getattr(sys.modules.get(module), function, None)
        if noted is not None and hasattr(noted, "rank"):
            with suppress(KeyError, ValueError):
                noted.rank = int(os.environ[variable])


def _reader(frame: FrameType | None) -> str:
    while frame is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""
