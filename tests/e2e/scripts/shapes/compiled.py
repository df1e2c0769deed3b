# pyright: basic, reportPrivateImportUsage=false
"""torch.compile of a model in DDP, with the backend that the argument names."""

import sys

import torch
import torch.distributed as dist
from steps import end, given, load, save, steps
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, load(rank))
    model = torch.compile(DistributedDataParallel(layer), backend=sys.argv[1])
    optimizer = torch.optim.SGD(layer.parameters(), lr=2.0)
    for step in steps(rank):
        optimizer.zero_grad()
        (-model(torch.full((1, 1), float(given(step, rank))))).sum().backward()  # the mean of both, twice
        optimizer.step()
        save(rank, step, layer.weight.item())
    end(rank, layer.weight.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
