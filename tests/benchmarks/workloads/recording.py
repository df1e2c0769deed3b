"""What a workload tells the bench: one line per event on a pipe, stamped with CLOCK_MONOTONIC.

Imports next to nothing, because a worker's first line is what is measured.
"""

import time

STARTED_NS = time.monotonic_ns()

import os  # noqa: E402  (loaded in every interpreter anyway; the stamp comes first)

RANK = int(os.environ["RANK"])
# How many faults the job has had. Agents of torchrun count the failures of their own node's ranks alone, so on several
# nodes a file that all of them see has one byte for each fault.
_FAULTS = os.environ.get("BENCH_FAULTS")
CYCLE = os.stat(_FAULTS).st_size if _FAULTS else int(os.environ["TORCHELASTIC_RESTART_COUNT"])

_PIPE = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)


def record(name: str, at_ns: int = 0, **fields: object) -> None:
    """One event; at_ns 0 is now. The line is short enough to be written at once."""
    at_ns = at_ns or time.monotonic_ns()
    extra = "".join(f" {key}={value}" for key, value in fields.items())
    os.write(_PIPE, f"{name} {RANK} {CYCLE} {os.getpid()} {at_ns}{extra}\n".encode())


def note_fault() -> None:
    """All ranks that start from now on are in the next cycle."""
    if _FAULTS:
        with open(_FAULTS, "ab") as faults:
            faults.write(b"f")


def await_go() -> None:
    """Wait until the bench says go. One rank of a job may ask."""
    pipe = os.open(os.environ["BENCH_GO"], os.O_RDONLY)
    os.read(pipe, 1)
    os.close(pipe)
