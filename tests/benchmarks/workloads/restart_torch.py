"""A script with torch: a gloo barrier, then a rank ends while the others wait for it; the next cycle ends well.

That rank is rank 1, or BENCH_FAULT_RANK.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from recording import CYCLE, RANK, await_go, note_fault, record

dist.init_process_group("gloo")
dist.barrier()  # pyright: ignore[reportUnknownMemberType]
record("barrier")
if CYCLE == 0:
    if int(os.environ.get("BENCH_FAULT_RANK", "1")) == RANK:
        await_go()
        note_fault()
        record("fault")
        if "--exit" in sys.argv:
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # pyright: ignore[reportUnknownMemberType]
count = torch.ones(1)
dist.all_reduce(count)  # pyright: ignore[reportUnknownMemberType]
if int(count) != dist.get_world_size():
    sys.exit(f"cannot trust the group: {int(count)} ranks of {dist.get_world_size()} answered")
record("reduced")
dist.destroy_process_group()
