"""What is a rank's main thread doing, according to its Python frames?

A wait inside a library shows as that library's frames below the script's own; a table says which of them tell what the
rank waits for. The script's own frames have unknown names; they are the place that people look for.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.process_facts import Frame

# Where library code is, including torch built from source. Everything else belongs to the script.
_LIBRARIES = (
    "/site-packages/", "/dist-packages/", "/lib/python3.", "/lib64/python3.", "/worker_client/",
    "/torch/distributed/", "/torch/nn/", "/torch/autograd/", "/torch/utils/", "/torch/cuda/", "/torch/_",
)  # fmt: skip


class Doing(enum.StrEnum):
    WAITS_FOR_RANKS = "waits for ranks"  # in a collective, or in a call that contains one
    WAITS_FOR_DATA = "waits for data"  # from a data loader, or another child process
    WAITS_FOR_LOCK = "waits for a lock"
    ENDS = "ends"  # it has left the training loop
    WORKS = "works"


class Activity(msgspec.Struct, frozen=True):
    doing: Doing
    call: str  # the call it waits in: "all_reduce"
    place: str  # the innermost frame of the script: "load_batch (data.py:40)"
    is_bare: bool = False  # that frame is the innermost of all, so a wait inside C is not visible


class _Row(msgspec.Struct, frozen=True):
    """Frames that tell what a rank waits for. `names` empty: any name."""

    file: str  # how the path ends
    names: frozenset[str]
    doing: Doing
    call: str = ""  # "": the name of the outermost frame that matches


def _row(file: str, names: str, doing: Doing, call: str = "") -> _Row:
    return _Row(file, frozenset(names.split()), doing, call)


# The first row that matches a frame below the script's own frames counts.
_TABLE = (
    _row("/threading.py", "_shutdown", Doing.ENDS, "the end of its other threads"),
    _row("/multiprocessing/util.py", "_exit_function", Doing.ENDS, "the end of its child processes"),
    _row("/torch/distributed/distributed_c10d.py", "destroy_process_group", Doing.ENDS),
    _row("/torch/distributed/distributed_c10d.py", "", Doing.WAITS_FOR_RANKS),
    _row("/torch/distributed/_functional_collectives.py", "", Doing.WAITS_FOR_RANKS),
    _row("/torch/distributed/rendezvous.py", "", Doing.WAITS_FOR_RANKS),
    _row("/torch/nn/parallel/distributed.py", "", Doing.WAITS_FOR_RANKS, "DistributedDataParallel"),
    _row("/torch/autograd/graph.py", "_engine_run_backward", Doing.WAITS_FOR_RANKS, "backward"),
    _row("/torch/autograd/__init__.py", "backward grad", Doing.WAITS_FOR_RANKS, "backward"),
    _row("/torch/_tensor.py", "backward", Doing.WAITS_FOR_RANKS, "backward"),
    _row("/torch/cuda/__init__.py", "synchronize", Doing.WAITS_FOR_RANKS),
    _row("/torch/cuda/streams.py", "synchronize", Doing.WAITS_FOR_RANKS),
    _row("/torch/utils/data/dataloader.py", "", Doing.WAITS_FOR_DATA),
    _row("/multiprocessing/queues.py", "get", Doing.WAITS_FOR_DATA),
    _row("/multiprocessing/connection.py", "recv recv_bytes poll wait", Doing.WAITS_FOR_DATA),
    _row("/multiprocessing/pool.py", "get next wait", Doing.WAITS_FOR_DATA),
    _row("/multiprocessing/popen_fork.py", "wait poll", Doing.WAITS_FOR_DATA),
    _row("/subprocess.py", "wait communicate", Doing.WAITS_FOR_DATA),
    _row("/threading.py", "wait acquire join __enter__ _wait_for_tstate_lock", Doing.WAITS_FOR_LOCK),
    _row("/queue.py", "get put join", Doing.WAITS_FOR_LOCK),
)


def activity_of(frames: tuple[Frame, ...]) -> Activity | None:
    """Returns what the main thread is doing; None without frames. `frames`: its frames, the innermost last."""
    if not frames:
        return None
    own = [number for number, frame in enumerate(frames) if not _is_library(frame)]
    below = frames[own[-1] + 1 :] if own else frames
    place = str(frames[own[-1]] if own else frames[-1])
    for row in _TABLE:
        found = next((frame for frame in below if _matches(frame, row)), None)
        if found is not None:
            return Activity(row.doing, row.call or found.place[1], place)
    return Activity(Doing.WORKS, "", place, is_bare=not below)


def _is_library(frame: Frame) -> bool:
    return frame.file.startswith("<frozen") or any(folder in frame.file for folder in _LIBRARIES)


def _matches(frame: Frame, row: _Row) -> bool:
    return frame.file.endswith(row.file) and (not row.names or frame.place[1] in row.names)
