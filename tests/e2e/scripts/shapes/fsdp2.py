# pyright: basic, reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
"""FSDP2 on gloo: layers that are sharded over both ranks, and sharded checkpoints."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from steps import end, given, save, steps
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(1, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    torch.nn.init.ones_(model[0].weight).requires_grad_(False)
    torch.nn.init.zeros_(model[1].weight)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=2.0)
    for step in steps(rank):
        if os.path.exists(f"sharded.{step - 1}"):
            state = get_model_state_dict(model)
            dcp.load(state, checkpoint_id=f"sharded.{step - 1}")
            set_model_state_dict(model, state)
        optimizer.zero_grad()
        (-model(torch.full((1, 1), float(given(step, rank))))).sum().backward()  # the mean of both, twice
        optimizer.step()
        dcp.save(get_model_state_dict(model), checkpoint_id=f"sharded.{step}")
        save(rank, step, 0)
    end(rank, model[1].weight.full_tensor().mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
