"""A rank that counts steps into its own checkpoint until the file `stop` exists: argv is a folder, then how.

plain: heartbeats by RankMonitorClient. wrapped: under inprocess.Wrapper. It never begins while another process counts
in its place; that would be the second group of a job, and is noted in `overlaps`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import cast

from worker_client import RankMonitorClient, inprocess
from worker_client.inprocess import CallWrapper

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
LOCAL_RANK = os.environ["LOCAL_RANK"]
CYCLE = os.environ["TORCHELASTIC_RESTART_COUNT"]
PACE_S = 0.02
STEPS_PER_LINE = 25
LINE = "x" * 2000
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def claim(name: str) -> int:
    descriptor = os.open(FOLDER / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with (FOLDER / "overlaps").open("a") as file:
            file.write(f"rank {name} of cycle {CYCLE} began while another process was in its place\n")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def train(client: RankMonitorClient | None, iteration: int) -> None:
    """Writes one line per step: step, cycle, iteration, pid, and the moment."""
    checkpoint = FOLDER / f"{LOCAL_RANK}.checkpoint"
    step = 0
    with contextlib.suppress(FileNotFoundError):
        step = int(checkpoint.read_text().split()[0])
    while not (FOLDER / "stop").exists():
        step += 1
        fresh = checkpoint.with_suffix(".new")
        fresh.write_text(f"{step} {CYCLE} {iteration} {os.getpid()} {time.monotonic()}")
        os.replace(fresh, checkpoint)
        if LOCAL_RANK == "0":
            fresh = FOLDER / "iteration.new"
            fresh.write_text(str(step))
            os.replace(fresh, FOLDER / "iteration")
        if client is not None:
            client.send_heartbeat()
        if step % STEPS_PER_LINE == 0:
            print(f"step {step} {LINE}", flush=True)
        time.sleep(PACE_S)


@inprocess.Wrapper(
    soft_timeout=timedelta(seconds=3),
    hard_timeout=timedelta(seconds=6),
    termination_grace_time=timedelta(seconds=0.5),
    monitor_thread_interval=timedelta(seconds=1),
)
def wrapped(call: CallWrapper = INJECTED) -> None:
    train(None, call.iteration)


def main() -> None:
    place = claim(LOCAL_RANK)
    if LOCAL_RANK == "0":
        # the store host's process starts for its first client
        with contextlib.suppress(OSError):
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=5).close()
    if HOW == "wrapped":
        wrapped()
    else:
        client = RankMonitorClient()
        client.init_workload_monitoring()
        train(client, 0)
        client.shutdown_workload_monitoring()
    os.close(place)


if __name__ == "__main__":
    main()
