# pyright: basic, reportPrivateImportUsage=false
"""torch.multiprocessing inside a rank: a process of the script's own trains, and the rank waits for it.

The argument is the start method. The test's faults are those of the rank, not of that process.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from steps import STEPS, end, first_step, given, load, save, strike

RANK = int(os.environ["RANK"])


def train(_index: int, rank: int) -> None:
    dist.init_process_group("gloo")
    total = load(rank)
    for step in range(first_step(rank), STEPS):
        if strike(rank, step, os.getppid()):
            time.sleep(600)
        gift = torch.tensor(float(given(step, rank)))
        dist.all_reduce(gift)
        total += gift.item()
        save(rank, step, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(train, args=(RANK,), nprocs=1, start_method=sys.argv[1])
    end(RANK, load(RANK))
