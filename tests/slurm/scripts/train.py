"""`train.py FOLDER [SECONDS] [ORDERS]`: a rank that notes where it is, and ends as it is told.

ORDERS are words like `kill:3:0` (rank 3 of cycle 0 kills itself) or `exit:0:*:93`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
RANK, CYCLE = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
NOTED = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "HOLDFAST_SOCKET")


def note(what: str) -> None:
    known = {name: value for name, value in os.environ.items() if name in NOTED or name.startswith("SLURM")}
    line = {"what": what, "cycle": int(CYCLE), "node": os.uname().nodename, "pid": os.getpid(), **known}
    with (FOLDER / "trace").open("a") as trace:
        trace.write(json.dumps(line) + "\n")


def told(number: int, frame: object) -> None:
    note(signal.Signals(number).name)
    sys.exit(0 if (FOLDER / "polite").exists() else 128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, told)
    note("started")
    for order in sys.argv[3:]:
        what, rank, cycle, *rest = order.split(":")
        if rank in ("*", RANK) and cycle in ("*", CYCLE):
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(int(rest[0]))
    deadline_s = time.monotonic() + SECONDS
    while time.monotonic() < deadline_s and not (FOLDER / "end").exists():
        time.sleep(0.02)
    note("done")


main()
