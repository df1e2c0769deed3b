"""Should torch's flight recorder be dumped before the collectives that it describes are aborted, and where?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.guarded_log import GuardedLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_client.inprocess.state import FrozenState

# For each of two dumps. A process's first dump with stacks may take longer, because torch looks up all symbols.
DUMP_TIMEOUT_S = 2.0
PATH_VARIABLES = ("HOLDFAST_FR_TRACE_PATH", "NVRX_FR_TRACE_PATH")
_FILE_PREFIX = "nccl_trace_rank_"  # what torch's own analyser looks for
_OLD_SIZE_VARIABLE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_SIZE_VARIABLE_SINCE = (2, 8)

log = GuardedLog("holdfast")


def dump(path: str | None, state: FrozenState, *, has_nccl: bool) -> None:
    """Writes the recorder's trace, if a path is known and the recorder is on. Blocks a few seconds at most.

    First dumps without stacks, which takes a millisecond, then replaces that with a dump with stacks if it is ready in
    time. The abort follows, so a later trace would show the collectives ended. Raises nothing.
    """
    path = path or next((value for name in PATH_VARIABLES if (value := os.environ.get(name))), None)
    if path is None or not _is_recording():
        return
    take = _taker(has_nccl=has_nccl)
    if take is None:
        log.warning("cannot dump the flight recorder: this version of torch offers no dump")
        return
    # Named by the rank that the recorder knows, which is the one that the script saw.
    rank = state.initial_rank if state.active_rank is None else state.active_rank
    file = Path(path) / f"iter_{state.iteration}" / f"{_FILE_PREFIX}{rank}"
    bare, traces = (
        BoundedThread("dump the flight recorder", lambda: _write(file, take(True, False, False))),
        list[bytes](),
    )
    bare.start()
    if not join_all([bare], DUMP_TIMEOUT_S) or bare.error is not None:
        return
    full = BoundedThread("dump the flight recorder with stacks", lambda: traces.append(take(True, True, False)))
    full.start()
    if join_all([full], DUMP_TIMEOUT_S) and traces:
        write = BoundedThread("write the flight recorder's stacks", lambda: _write(file, traces[0]))
        write.start()
        join_all([write], DUMP_TIMEOUT_S)


def _is_recording() -> bool:
    names = [_OLD_SIZE_VARIABLE]
    if _torch_version() >= _SIZE_VARIABLE_SINCE:
        names.append(_SIZE_VARIABLE)
    for name in names:
        value = os.environ.get(name)
        if not value:
            continue
        try:
            if int(value) > 0:
                return True
        except ValueError:
            log.warning("cannot read %s=%r: not an integer; no dump of the flight recorder by it", name, value)
    return False


def _torch_version() -> tuple[int, ...]:
    text = str(getattr(sys.modules.get("torch"), "__version__", "0"))
    numbers = [part for part in text.split("+")[0].split(".")[:2] if part.isdigit()]
    return tuple(map(int, numbers))


def _taker(*, has_nccl: bool) -> Callable[[bool, bool, bool], bytes] | None:
    """Returns torch's dump function, NCCL's if there is NCCL. Its arguments: collectives, stacks, only active ones."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    names = ("_dump_nccl_trace", "_dump_fr_trace") if has_nccl else ("_dump_fr_trace",)
    return next((take for name in names if (take := getattr(c10d, name, None)) is not None), None)


def _write(file: Path, trace: bytes) -> None:
    """Replaces the file at once, so that a reader sees one trace or the other."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}")  # its prefix is not the one that torch's analyser looks for
    unfinished.write_bytes(trace)
    unfinished.replace(file)
