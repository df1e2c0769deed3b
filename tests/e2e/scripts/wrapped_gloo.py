"""A gloo job under the Wrapper: rank 1 fails twice while the others wait in a collective; then all ends well."""
# pyright: basic, reportPrivateImportUsage=false

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from worker_client import inprocess

RANK = int(os.environ["RANK"])


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@inprocess.Wrapper(soft_timeout=timedelta(seconds=5 if sys.argv[1] == "sleep" else 60))
def train(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    own = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 2 + call.iteration, dist.get_world_size(),
        dist.get_rank() == 0, timeout=timedelta(minutes=1),
    )  # fmt: skip
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == int(os.environ["WORLD_SIZE"])
    note("up", iteration=call.iteration)
    if call.iteration < 2:
        if RANK == 1:
            time.sleep(0.3)
            note("fault", iteration=call.iteration)
            if sys.argv[1] == "kill" and call.iteration == 0:
                os.kill(os.getpid(), 9)
            if sys.argv[1] == "sleep" and call.iteration == 0:
                time.sleep(3600)
            raise ValueError("by intention")
        dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
    del own


train()
note("returned")
