"""What does a workload tell the bench? One line per event on a pipe, stamped with CLOCK_MONOTONIC.

It imports almost nothing, because the bench measures the time to a worker's first line.
"""

import time

STARTED_NS = time.monotonic_ns()

import os  # noqa: E402  (loaded in every interpreter anyway; the stamp comes first)

RANK = int(os.environ["RANK"])
# How many faults the job has had. torchrun's agents count only the failures of their own node's ranks, so on several
# nodes a shared file has one byte for each fault.
_FAULTS = os.environ.get("BENCH_FAULTS")
CYCLE = os.stat(_FAULTS).st_size if _FAULTS else int(os.environ["TORCHELASTIC_RESTART_COUNT"])

_PIPE = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)


def record(name: str, at_ns: int = 0, **fields: object) -> None:
    """Records one event; at_ns 0 is now. The line is short enough for one atomic write."""
    at_ns = at_ns or time.monotonic_ns()
    extra = "".join(f" {key}={value}" for key, value in fields.items())
    os.write(_PIPE, f"{name} {RANK} {CYCLE} {os.getpid()} {at_ns}{extra}\n".encode())


def note_fault() -> None:
    """Notes a fault: all ranks that start from now on are in the next cycle."""
    if _FAULTS:
        with open(_FAULTS, "ab") as faults:
            faults.write(b"f")


def await_go() -> None:
    """Waits until the bench says go. Only one rank of a job may call it."""
    pipe = os.open(os.environ["BENCH_GO"], os.O_RDONLY)
    os.read(pipe, 1)
    os.close(pipe)
