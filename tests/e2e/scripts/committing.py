"""Ranks that commit, each as the argument says. They talk by files in the working folder."""

# torch's annotations are too partial for strict types.
# pyright: basic, reportPrivateImportUsage=false

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import cast

from worker_client import LeaseLostError, RankMonitorClient, commit, fencing_token, inprocess
from worker_client.inprocess import CallWrapper

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["HOLDFAST_CYCLE"])
CHECKPOINT = Path("checkpoint")
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    with Path(os.environ["TRACE"]).open("a") as trace:
        trace.write(json.dumps({"what": what, "rank": RANK, "cycle": CYCLE, **more}) + "\n")


def wait_for(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.002)


def save(value: object, until: str | None = None) -> None:
    with commit(CHECKPOINT) as temporary:
        temporary.write_text(str(value))
        note("inside", value=value, pid=os.getpid())
        if until is not None:
            wait_for(until)
    note("saved", value=value, token=fencing_token())


def held() -> None:
    """In cycle 0, rank 1 stays in its block, and rank 0 fails when it is told to."""
    if CYCLE:
        save(40)
    elif RANK == 1:
        save(10, until="never")
    else:
        wait_for("fail")
        sys.exit(1)


def monitored() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    note("ready")
    wait_for("go")
    began_s = time.monotonic()
    save(10)
    note("took", took_s=time.monotonic() - began_s)
    client.shutdown_workload_monitoring()


@inprocess.Wrapper()
def wrapped(call: CallWrapper = INJECTED) -> None:
    """A thread of iteration 0 is still in its block when iteration 1 commits."""
    if call.iteration == 0:
        if RANK == 0:
            threading.Thread(target=late, name="late").start()
            wait_for("never")
        wait_for("late-is-inside")
        raise ValueError("by intention")
    if RANK == 0:
        save(40)
        Path("go").touch()
        next(each for each in threading.enumerate() if each.name == "late").join()


def late() -> None:
    try:
        with commit(CHECKPOINT) as temporary:
            temporary.write_text("10")
            Path("late-is-inside").touch()
            wait_for("go")
    except LeaseLostError as error:
        note("lost", why=str(error))


def sharded() -> None:
    """All ranks write one distributed checkpoint, twice, into the folder that rank 0 commits."""
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint

    dist.init_process_group("gloo")
    for step in (10, 40):
        weights = {"weights": torch.full((4,), float(step)), "step": step}
        if RANK == 0:
            with commit(CHECKPOINT) as temporary:
                dist.broadcast_object_list([str(temporary)])
                checkpoint.save(weights, checkpoint_id=temporary)
        else:
            found: list[str] = [""]
            dist.broadcast_object_list(found)
            checkpoint.save(weights, checkpoint_id=found[0])
    dist.barrier()
    read = {"weights": torch.zeros(4), "step": 0}
    checkpoint.load(read, checkpoint_id=str(CHECKPOINT))
    note("read", step=read["step"], weights=read["weights"].tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    {"held": held, "monitored": monitored, "plain": lambda: save(10), "wrapped": wrapped, "sharded": sharded}[
        sys.argv[1]
    ]()
