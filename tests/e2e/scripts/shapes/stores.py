# pyright: basic, reportPrivateImportUsage=false
"""Stores of the script's own: a TCPStore on the port beside the launcher's for its process group, and a FileStore."""

import os
from datetime import timedelta

import torch.distributed as dist
from steps import CYCLE, end, given, load, save, steps


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    tcp = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("training", tcp), rank=rank, world_size=size)
    file = dist.FileStore(os.path.abspath(f"store.{CYCLE}"), size)
    total = load(rank)
    for step in steps(rank):
        file.add(f"step {step}", given(step, rank))
        tcp.set(f"{step} {rank}", "given")
        tcp.wait([f"{step} {each}" for each in range(size)], timedelta(seconds=60))
        dist.barrier()
        total += file.add(f"step {step}", 0)
        save(rank, step, total)
    end(rank, total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
