"""In-process restart in its simplest form: a fault on any rank calls the function again on all, in the same processes.

    holdfast run --nproc-per-node 4 docs/examples/inprocess_basic.py --fail-at-step 30
    torchrun --nproc-per-node 4 docs/examples/inprocess_basic.py --fail-at-step 30
    python docs/examples/inprocess_basic.py

A script for the reference product only needs a different import line.
"""

# torch's annotations are too partial for strict types.
# pyright: basic

from __future__ import annotations

import argparse
import datetime
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_client import commit, inprocess

# torch 2.13 may deadlock where a Gloo group ends in the moment in which its last collective does, under any launcher.
GLOO_REST_S = 0.1


@inprocess.Wrapper(soft_timeout=datetime.timedelta(seconds=60), hard_timeout=datetime.timedelta(seconds=90))
def train(args: argparse.Namespace, call_wrapper: inprocess.CallWrapper | None = None) -> float:
    """Called again after each fault, so it creates or loads everything that a fault may have damaged."""
    assert call_wrapper is not None  # The Wrapper passes it to the parameter of this type.
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # Under plain python, no launcher says where ranks meet;
    os.environ.setdefault("MASTER_PORT", "0")  # the only rank uses any free port.
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = load(args.checkpoint, model, optimizer)
    print(f"iteration {call_wrapper.iteration}: rank {rank} of {world_size} starts at step {step}", flush=True)
    loss = torch.tensor(0.0)
    while step < args.steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 and rank == 0:
            save(args.checkpoint, step, model, optimizer)
        if step == args.fail_at_step and rank == 1 and call_wrapper.iteration == 0:
            raise RuntimeError(f"rank {rank} fails at step {step}, as it was told")
    dist.barrier()
    time.sleep(GLOO_REST_S)
    dist.destroy_process_group()
    return loss.item()


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads the checkpoint and returns its step; 0 if there is none."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Saves the checkpoint whole or not at all, because a restart may come at any moment."""
    with commit(path) as temporary:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint", type=Path, default=Path("inprocess-basic.pt"))
    parser.add_argument("--fail-at-step", type=int, help="rank 1 raises an exception after this step, once")
    args = parser.parse_args()
    loss = train(args)
    print(f"finished with loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
