# pyright: basic, reportPrivateImportUsage=false
"""A training with sections and the client's state in its checkpoint, as users of ft_launcher have it."""

import os

os.environ["TORCH_CPP_LOG_LEVEL"] = "error"

import argparse
import logging
import random
import sys
import time

import torch
import torch.distributed as dist

from worker_client import RankMonitorClient

CHECKPOINT = "checkpoint.pt"


def get_logger():
    logging.basicConfig(stream=sys.stderr, format="[%(asctime)s] rank %(process)d %(message)s")
    return logging.getLogger("sections")


def save(path, **state):
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_distributed_method", default="env://")
    parser.add_argument("--num_steps", type=int, default=20)
    args = parser.parse_args()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("setup")
    dist.init_process_group("gloo", init_method=args.init_distributed_method)
    rank = dist.get_rank()
    os.write(1, f"rank {rank} is process {os.getpid()}\n".encode())
    random.seed(rank)
    weights, first = torch.zeros(8, dtype=torch.double), 0
    if os.path.exists(CHECKPOINT):
        loaded = torch.load(CHECKPOINT, weights_only=False)
        weights, first = loaded["weights"], loaded["step"]
        client.load_state_dict(loaded["monitor"])
        get_logger().warning("continues at step %d", first)
    dist.barrier()
    client.end_section("setup")
    for step in range(first, args.num_steps):
        client.start_section("step")
        gradient = torch.rand(8, dtype=torch.double, generator=torch.Generator().manual_seed(step * 2 + rank))
        dist.all_reduce(gradient)
        weights = 0.9 * weights + gradient.sin()
        time.sleep(0.05)
        client.end_section("step")
        if rank == 0:
            client.start_section("checkpointing")
            save(CHECKPOINT, weights=weights, step=step + 1, monitor=client.state_dict())
            client.end_section("checkpointing")
            print(f"step {step}", flush=True)
    os.write(1, f"rank {rank} ends with {weights.sum().item()!r}\n".encode())
    client.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
