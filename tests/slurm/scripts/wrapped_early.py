"""Trains under the Wrapper, one rank a task of srun, and fails early in the first iteration. argv: the folder, the
number of calls, how.

initialize: rank 1 raises in Initialize. early: rank 1 raises as the function begins. server: rank 0 does, which would
serve the store. killed: rank 0 is killed, and no other rank is on its node.
"""
# pyright: basic, reportPrivateImportUsage=false

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from worker_client import inprocess

FOLDER, CALLS, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ |= {
    "RANK": os.environ["SLURM_PROCID"], "LOCAL_RANK": os.environ["SLURM_LOCALID"],
    "WORLD_SIZE": os.environ["SLURM_NTASKS"], "MASTER_ADDR": "node1",
}  # fmt: skip
RANK = int(os.environ["RANK"])
WAITING_S = 1.0


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "node": os.uname().nodename, "at": time.monotonic(), **more})
    with (FOLDER / "trace").open("a") as trace:
        trace.write(f"{line}\n")


class FailAtFirst(inprocess.initialize.Initialize):
    def __call__(self, state: inprocess.state.FrozenState) -> inprocess.state.FrozenState:
        if HOW == "initialize" and RANK == 1 and state.iteration == 0:
            note("fault")
            raise ValueError("by intention")
        return state


@inprocess.Wrapper(initialize=FailAtFirst())
def train(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    note("fn", iteration=call.iteration)
    if call.iteration == 0 and {"early": 1, "server": 0, "killed": 0}.get(HOW) == RANK:
        note("fault")
        if HOW == "killed":
            time.sleep(WAITING_S)  # until the others wait for the store
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("by intention")
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()


for _ in range(CALLS):
    train()
    note("returned")
