"""A gloo job under the Wrapper that obeys files in the folder ORDERS, until there is one `end`.

In each iteration, all ranks meet in an all_reduce before they note `up`, and then wait in another one.
"""
# pyright: basic, reportPrivateImportUsage=false

import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from worker_client import inprocess

RANK = int(os.environ["RANK"])
ORDERS = Path(os.environ["ORDERS"])
SOFT_S = float(os.environ.get("SOFT_S", "60"))
ACTIVE = int(sys.argv[1]) if len(sys.argv) > 1 else 0  # the others wait in reserve
FOR_EVER_S = 3600.0


def note(what: str, **more: object) -> None:
    more |= {"cycle": os.environ["TORCHELASTIC_RESTART_COUNT"], "node": os.environ.get("NODE", ""), "pid": os.getpid()}
    line = json.dumps({"what": what, "rank": RANK, "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def is_ordered(what: str) -> bool:
    """Returns True once for each time that it is ordered."""
    try:
        ORDERS.joinpath(f"{what}-{RANK}").unlink()
    except FileNotFoundError:
        return False
    return True


def obey(iteration: int) -> None:
    for what in ("fail", "die", "sleep", "gil"):
        if not is_ordered(what):
            continue
        note("fault", iteration=iteration)
        match what:
            case "fail":
                raise ValueError("by intention")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(FOR_EVER_S)
            case _:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGTERM})
                ctypes.PyDLL(None).sleep(int(FOR_EVER_S))


def assignment() -> inprocess.rank_assignment.RankAssignment:
    if not ACTIVE:
        return inprocess.rank_assignment.ShiftRanks()
    return inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks()
        if ACTIVE < 0
        else inprocess.rank_assignment.MaxActiveWorldSize(ACTIVE),
        inprocess.rank_assignment.ShiftRanks(),
    )


@inprocess.Wrapper(
    rank_assignment=assignment(),
    soft_timeout=timedelta(seconds=SOFT_S),
    hard_timeout=timedelta(seconds=SOFT_S + 1),
    termination_grace_time=timedelta(seconds=0.5),
)
def train(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    note(
        "fn", iteration=call.iteration, as_rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"],
        store=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    )  # fmt: skip
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == int(os.environ["WORLD_SIZE"])
    note("up", iteration=call.iteration)
    while not ORDERS.joinpath("end").exists():
        obey(call.iteration)
        dist.barrier()
        time.sleep(0.002)
    time.sleep(0.05)
    dist.destroy_process_group()


note("call")
train()
note("returned")
