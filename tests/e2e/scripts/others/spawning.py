# pyright: basic, reportPrivateImportUsage=false
"""A script that starts its ranks itself, by torch.multiprocessing.spawn, and reads no launcher's environment."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 24
CHECKPOINT = "checkpoint.pt"


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_checkpoint(rank, world_size, port):
    setup(rank, world_size, port)
    os.write(1, f"rank {rank} is process {os.getpid()}\n".encode())
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    first = 0
    if os.path.exists(CHECKPOINT):
        first, weights, state = torch.load(CHECKPOINT)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    model = DDP(model)
    for step in range(first, STEPS):
        batch = torch.randn(20, 10, generator=torch.Generator().manual_seed(step * world_size + rank))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)
        if rank == 0:
            print(f"step {step}", flush=True)
            torch.save((step + 1, model.module.state_dict(), optimizer.state_dict()), CHECKPOINT + ".new")
            os.replace(CHECKPOINT + ".new", CHECKPOINT)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    os.write(1, f"rank {rank} ends with {total!r}\n".encode())
    dist.destroy_process_group()


def run_demo(demo_fn, world_size):
    with socket.create_server(("localhost", 0)) as probe:
        port = probe.getsockname()[1]
    mp.spawn(demo_fn, args=(world_size, port), nprocs=world_size, join=True)


if __name__ == "__main__":
    run_demo(demo_checkpoint, int(sys.argv[1]))
