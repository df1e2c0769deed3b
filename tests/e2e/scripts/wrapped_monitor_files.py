"""A function under the Wrapper that restarts once; argv: monitor_process_logfile, monitor_process_pidfile."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import cast

from worker_client import inprocess

RANK = os.environ["RANK"]
FOR_EVER_S = 3600.0
INJECTED = cast("inprocess.CallWrapper", None)  # replaced by the Wrapper


@inprocess.Wrapper(monitor_process_logfile=sys.argv[1], monitor_process_pidfile=sys.argv[2])
def train(call: inprocess.CallWrapper = INJECTED) -> None:
    if call.iteration == 0:
        if RANK == "1":
            raise ValueError("by intention")
        time.sleep(FOR_EVER_S)
    pid = int(Path(sys.argv[2].replace("{rank}", RANK)).read_text())
    os.kill(pid, 0)  # it is alive
    print(f"rank {RANK} (pid {os.getpid()}) is supervised by {pid}", flush=True)


train()
