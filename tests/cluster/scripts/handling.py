"""A rank that trains with gloo. The file `handler` says what it does about SIGTERM. argv: folder, pace.

none: nothing. flag: it notes it, and ends after the step. late: as `flag`, but it saves for SAVES_S first, and rank 1
does not wait in a collective when the signal comes. Ends well when the file `end` is there.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from tests.cluster.scripts.stepping import Stamps

FOLDER, PACE_S = Path(sys.argv[1]), float(sys.argv[2])
HANDLER = (FOLDER / "handler").read_text()
SAVES_S = 3.0
LONG_S = 60.0
SLOW_FROM = 5  # the step from which rank 1 is slow, with `late`


def note(_signal: int, _frame: FrameType | None) -> None:
    if HANDLER == "late":
        until_s = time.monotonic() + SAVES_S
        rank = os.environ["RANK"]
        with (FOLDER / f"saving-{rank}").open("w") as file:
            while time.monotonic() < until_s:
                file.write("a part of it")
                time.sleep(0.1)
        (FOLDER / f"saving-{rank}").rename(FOLDER / f"saved-{rank}")
    sys.exit(0)


def main() -> None:
    if HANDLER != "none":
        signal.signal(signal.SIGTERM, note)
    stamps = Stamps()
    stamps.put("alive")
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    word = torch.zeros(1)
    while not word.item():
        if HANDLER == "late" and rank == 1 and step == SLOW_FROM and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            (FOLDER / "slow").touch()
            time.sleep(LONG_S)
        word[0] = float(rank == 0 and (FOLDER / "end").exists())
        dist.all_reduce(word)
        step += 1
        stamps.put("step", step)
        time.sleep(PACE_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
