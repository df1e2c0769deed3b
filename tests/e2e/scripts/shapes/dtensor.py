# pyright: basic, reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
"""Tensor parallel by DTensor: the columns of one layer and the rows of the next are on different ranks."""

import torch
import torch.distributed as dist
from steps import end, load, save, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    mesh = init_device_mesh("cpu", (2,))
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(1, 4, bias=False), torch.nn.Linear(4, 1, bias=False))
    torch.nn.init.ones_(model[0].weight).requires_grad_(False)
    torch.nn.init.constant_(model[1].weight, load(rank))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    optimizer = torch.optim.SGD(model[1].parameters(), lr=3.0)
    for step in steps(rank):
        optimizer.zero_grad()
        (-model(torch.full((1, 1), step + 1.0))).sum().backward()
        optimizer.step()
        weight = model[1].weight
        assert isinstance(weight, DTensor)
        save(rank, step, weight.full_tensor().mean().item())
    rows = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert rows.redistribute(mesh, [Replicate()]).to_local().tolist() == [0, 1, 2, 3]
    end(rank, model[1].weight.full_tensor().mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
