"""A gloo barrier, then the ranks wait for one that ends; the next cycle ends well."""

import sys
import time

import torch
import torch.distributed as dist
from recording import CYCLE, RANK, await_go, record

_LONG_S = 60.0


def train() -> None:
    """Trains; in the first cycle rank 1 ends by itself, unless its timer ends it sooner."""
    dist.init_process_group("gloo")
    dist.barrier()  # pyright: ignore[reportUnknownMemberType]
    record("barrier")
    if CYCLE == 0:
        if RANK == 1 and "--young" in sys.argv:
            time.sleep(_LONG_S)
        elif RANK == 1:
            await_go()
            end_here()
        dist.barrier()  # pyright: ignore[reportUnknownMemberType]
    count = torch.ones(1)
    dist.all_reduce(count)  # pyright: ignore[reportUnknownMemberType]
    if int(count) != dist.get_world_size():
        sys.exit(f"cannot trust the group: {int(count)} ranks of {dist.get_world_size()} answered")
    dist.destroy_process_group()


def end_here() -> None:
    from fault_timer import end_now

    end_now()
