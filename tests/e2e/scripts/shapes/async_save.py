# pyright: basic, reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
"""Checkpoints that are written behind the training's back, by threads or by a process of their own (the argument)."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from steps import STEPS, end, given, say, strike
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def main() -> None:
    kind = AsyncCheckpointerType(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saving = dist.new_group()
    complete = [step for step in range(STEPS) if Path(f"saved.{step}", ".metadata").exists()]
    state = {"total": torch.zeros(1), "step": -1}
    if complete:
        dcp.load(state, checkpoint_id=f"saved.{complete[-1]}")
    first = state["step"] + 1
    say(f"rank {rank} begins at step {first}")
    dist.barrier()
    under_way = None
    for step in range(first, STEPS):
        gift = torch.tensor([float(given(step, rank))])
        dist.all_reduce(gift)
        if under_way:
            under_way.result()
        state = {"total": state["total"] + gift, "step": step}
        under_way = dcp.async_save(
            state, checkpoint_id=f"saved.{step}", process_group=saving, async_checkpointer_type=kind
        )
        strike(rank, step, os.getpid())
    if under_way:
        under_way.result()
    end(rank, state["total"].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
