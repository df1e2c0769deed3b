"""Does every reader of what a stranger may write survive a million inputs? Each is read, or refused as documented.

An input is wrong for us if its reader raises anything else, takes too long, or takes too much memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.soak.mutations import mutated

READ_S = 2.0  # of CPU, for one input: this machine may be small
STALL_S = 30.0  # then even a reader that sleeps or waits is ended
MEMORY_BYTES = 768 << 20  # on top of what the process has at the start
SHOWN_MAX = 3  # of each reader
INPUT_SHOWN_BYTES = 300


@dataclass(frozen=True)
class Target:
    """One reader. `errors`: what it may raise. `share`: of the inputs, if it is slower than the others."""

    name: str
    corpus: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...] = ()
    share: float = 1.0


class StalledError(BaseException):
    """Raised in a reader that does not return."""


@dataclass
class Outcome:
    """What came of one target."""

    target: Target
    inputs: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    grown_bytes: int = 0

    def line(self) -> str:
        refused = f"{100 * self.refused / max(self.inputs, 1):5.1f} % refused"
        return (
            f"  {self.target.name:32} {self.inputs:8} inputs, {refused}, slowest {self.slowest_s:6.3f} s, "
            f"memory + {self.grown_bytes >> 20:4} MiB"
        )


def played(target: Target, inputs: int, seed: int) -> tuple[Outcome, list[str]]:
    """Gives the target so many inputs; returns what is wrong."""
    dice = Random(f"{seed} {target.name}")
    outcome, wrong = Outcome(target), list[str]()
    before_bytes = _peak_bytes()
    for data in target.corpus:
        _read(target, data, outcome, wrong)
    while outcome.inputs < inputs and len(wrong) < SHOWN_MAX:
        _read(target, mutated(dice, target.corpus), outcome, wrong)
    outcome.grown_bytes = _peak_bytes() - before_bytes
    return outcome, wrong


def _read(target: Target, data: bytes, outcome: Outcome, wrong: list[str]) -> None:
    outcome.inputs += 1
    began_s = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, STALL_S)
    try:
        target.read(data)
    except target.errors:
        outcome.refused += 1
    except (Exception, StalledError) as error:  # noqa: BLE001 - each of them is a finding
        wrong.append(f"{target.name}: {_told(error)} for {_shown(data)}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    took_s = time.process_time() - began_s
    outcome.slowest_s = max(outcome.slowest_s, took_s)
    if took_s > READ_S:
        wrong.append(f"{target.name}: took {took_s:.1f} s for {_shown(data)}")


def _told(error: BaseException) -> str:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" at {Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where is not None else ""
    return f"{type(error).__name__}: {str(error)[:200]}{place}"


def _shown(data: bytes) -> str:
    cut = "" if len(data) <= INPUT_SHOWN_BYTES else f" … of {len(data)} bytes"
    return f"{data[:INPUT_SHOWN_BYTES]!r}{cut}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def all_played(targets: Sequence[Target], inputs: int, seed: int) -> tuple[list[Outcome], list[str]]:
    """Divides the inputs among the targets. The alarm signal is used meanwhile."""

    def stall(number: int, frame: object) -> None:
        raise StalledError

    before = signal.signal(signal.SIGALRM, stall)
    outcomes, wrong = list[Outcome](), list[str]()
    shares = sum(target.share for target in targets)
    try:
        for target in targets:
            outcome, found = played(target, max(1, round(inputs * target.share / shares)), seed)
            outcomes.append(outcome)
            wrong += found
    finally:
        signal.signal(signal.SIGALRM, before)
    return outcomes, wrong


def bound_memory() -> None:
    """A reader that asks for more gets a MemoryError, which is a finding."""
    has_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (has_bytes + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main(arguments: argparse.Namespace) -> list[str]:
    from tests.soak.fuzz_targets import targets

    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}, {arguments.inputs} inputs", flush=True)
    wrong: list[str] = []
    # In memory: there, a file can have any time.
    with TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        chosen = [each for each in targets(Path(folder)) if not arguments.only or each.name in arguments.only]
        logging.getLogger("holdfast").addHandler(logging.NullHandler())
        logging.getLogger("holdfast").propagate = False
        bound_memory()
        faulthandler.enable()
        began_s = time.monotonic()
        outcomes, wrong = all_played(chosen, arguments.inputs, seed)
    for outcome in outcomes:
        print(outcome.line())
    total = sum(each.inputs for each in outcomes)
    print(f"  {total} inputs for {len(outcomes)} readers in {time.monotonic() - began_s:.0f} s")
    return wrong
