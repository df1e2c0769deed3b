"""What the scripts of this folder share: steps, a checkpoint of each rank, and the faults that a test asks for.

In each step s, rank r of 2 gives (s + 1) * (r + 1). So what a script has added up in the end is 63, whatever happened.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

STEPS = 6
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def given(step: int, rank: int) -> int:
    return (step + 1) * (rank + 1)


def steps(rank: int) -> Iterator[int]:
    """Yields the steps that are left, and strikes before some of them."""
    for step in range(first_step(rank), STEPS):
        strike(rank, step, os.getpid())
        yield step


def first_step(rank: int) -> int:
    """Returns the first step that not every rank has saved."""
    first = 0
    while all(Path(f"{first}.{each}.json").exists() for each in range(2)):
        first += 1
    say(f"rank {rank} begins at step {first}")
    return first


def load(rank: int) -> float:
    """Returns what the rank has added up until the first step that is left."""
    step = -1
    while all(Path(f"{step + 1}.{each}.json").exists() for each in range(2)):
        step += 1
    return float(json.loads(Path(f"{step}.{rank}.json").read_text())) if step >= 0 else 0.0


def save(rank: int, step: int, total: float) -> None:
    unfinished = Path(f"unfinished.{rank}")
    unfinished.write_text(json.dumps(total))
    unfinished.replace(f"{step}.{rank}.json")


def strike(rank: int, step: int, pid: int) -> bool:
    """Kills rank 1 by the signal STRIKE in the first cycle, and stops rank 0 in the second."""
    numbers = {(0, 1, 3): int(os.environ.get("STRIKE", 0)), (1, 0, 4): signal.SIGSTOP}
    due = "STRIKE" in os.environ and (CYCLE, rank, step) in numbers
    if due:
        os.kill(pid, numbers[CYCLE, rank, step])
    return due


def say(text: str) -> None:
    """Prints a line by one write, so that the lines of two ranks do not mix."""
    os.write(1, f"{text}\n".encode())


def end(rank: int, total: float) -> None:
    say(f"rank {rank} ends with {total}")
