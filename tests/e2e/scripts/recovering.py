# pyright: basic, reportPrivateImportUsage=false
"""A gloo job that fails, in each cycle, as its arguments say: "CYCLE:RANK/ACTION"; the last cycle ends well.

Every rank takes part in a collective first, opens stores of its own beside MASTER_PORT, and leaves a key that no later
cycle may see.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SHORT = timedelta(seconds=60)


def open_own_stores() -> list[dist.TCPStore]:
    """Opens stores as DeepSpeed's and Megatron's helpers do, at fixed distances from the given port.

    The caller keeps them: rank 0's reference keeps the server alive, and others may still wait in it.
    """
    stores: list[dist.TCPStore] = []
    for distance in (1, 2):
        port = int(os.environ["MASTER_PORT"]) + distance
        store = dist.TCPStore(os.environ["MASTER_ADDR"], port, WORLD_SIZE, RANK == 0, timeout=SHORT)
        store.set(f"rank {RANK}", "here")
        store.wait([f"rank {rank}" for rank in range(WORLD_SIZE)])
        stores.append(store)
    return stores


def check_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    earlier = [f"cycle {cycle} rank {rank}" for cycle in range(CYCLE) for rank in range(WORLD_SIZE)]
    assert not any(store.check([key]) for key in earlier), "a key of an earlier cycle is seen"
    store.set(f"cycle {CYCLE} rank {RANK}", "seen")


def act(action: str) -> None:
    match action:
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            time.sleep(600)


def main() -> None:
    plan = dict(argument.split("/") for argument in sys.argv[1:] if "/" in argument)
    wanted = plan.get(f"{CYCLE}:{RANK}", "")
    if wanted.endswith(" before"):
        act(wanted.removesuffix(" before"))
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps({"what": "joining", "rank": RANK, "cycle": CYCLE}) + "\n")
    dist.init_process_group("gloo", timeout=SHORT)
    check_store()
    stores = open_own_stores() if "--own-stores" in sys.argv else []
    total = torch.tensor([RANK + 1.0])
    dist.all_reduce(total)
    sys.stdout.write(f"cycle {CYCLE} rank {RANK} total {total.item():.0f}\n")  # print() writes a line's end apart
    dist.barrier()  # a rank that fails now takes nobody down before that line is written
    act(wanted)
    dist.barrier()
    stores.clear()
    dist.destroy_process_group()


main()
