"""`train.py FOLDER SECONDS [ORDER …]`: a rank that notes where it runs, and ends as its orders say.

`kill:RANK:CYCLE` and `exit:RANK:CYCLE:CODE` concern a rank in a cycle, * is any; `taskN:CODE` task N of an array, with
`:first` only before it is queued again; `save:SECONDS` is how long a rank saves after SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER, SECONDS, ORDERS = Path(sys.argv[1]), float(sys.argv[2]), [order.split(":") for order in sys.argv[3:]]
RANK, CYCLE = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
TASK, IS_FIRST = os.environ.get("SLURM_ARRAY_TASK_ID", ""), "SLURM_RESTART_COUNT" not in os.environ
NOTED = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "HOLDFAST_SOCKET")


def note(what: str) -> None:
    known = {name: value for name, value in os.environ.items() if name in NOTED or name.startswith("SLURM")}
    line = {
        "what": what, "cycle": int(CYCLE), "node": os.uname().nodename, "pid": os.getpid(), "uid": os.getuid(),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()), **known,
    }  # fmt: skip
    with (FOLDER / "trace").open("a") as trace:
        trace.write(json.dumps(line) + "\n")


def end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # Slurm sends it to each process, and so does the supervisor
    note(signal.Signals(number).name)
    for what, *rest in ORDERS:
        if what == "save":
            time.sleep(float(rest[0]))
            note("saved")
    os._exit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, end)
    note("started")
    for what, *rest in ORDERS:
        if what in ("kill", "exit") and rest[0] in ("*", RANK) and rest[1] in ("*", CYCLE):
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(int(rest[2]))
        if what == f"task{TASK}" and (rest[1:] != ["first"] or IS_FIRST):
            sys.exit(int(rest[0]))
    deadline_s = time.monotonic() + SECONDS
    while time.monotonic() < deadline_s and not (FOLDER / "end").exists():
        time.sleep(0.02)
    note("done")


main()
