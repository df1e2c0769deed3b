"""In-process restart with all of the Wrapper's features: spare ranks, budgets, checks, critical parts, own aborts.

    holdfast run --nproc-per-node 4 --max-restarts 2 docs/examples/inprocess_advanced.py --active 3 --kill-at-step 30

Three ranks train and one waits in reserve. A rank is killed: the reserve takes its place at once, and under
`holdfast run` a new process takes the place of the reserve.
"""

# torch's annotations are too partial for strict types.
# pyright: basic

from __future__ import annotations

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_client import commit, inprocess
from worker_client.inprocess.rank_assignment import Layer, LayerFlag, Tree

# torch 2.13 may deadlock where a Gloo group ends in the moment in which its last collective does, under any launcher.
GLOO_REST_S = 0.1


class CloseDataset(inprocess.finalize.Finalize):
    """Runs on the main thread after a fault, when the process groups are gone."""

    def __call__(self, state: inprocess.state.FrozenState) -> inprocess.state.FrozenState:
        print(f"rank {state.rank}: iteration {state.iteration} is over, closing its files", flush=True)
        return state


def wrap(active: int) -> inprocess.Wrapper:
    return inprocess.Wrapper(
        # Ends the job once too few ranks are left, or after too many restarts.
        initialize=inprocess.initialize.RetryController(max_iterations=5, min_active_world_size=2),
        # A Compose runs last to first: torch's process groups are aborted before Transformer Engine's buffers.
        abort=inprocess.Compose(inprocess.abort.AbortTransformerEngine(), inprocess.abort.AbortTorchDistributed()),
        finalize=CloseDataset(),
        health_check=inprocess.Compose(
            inprocess.health_check.CudaHealthCheck(timeout=timedelta(seconds=10)),
            inprocess.health_check.FaultCounter(max_rank_faults=3),
        ),
        rank_assignment=Tree([Layer(min_ranks=2, max_ranks=active, key_or_fn="root", flag=LayerFlag.RESERVE)]),
        soft_timeout=timedelta(seconds=20),
        hard_timeout=timedelta(seconds=40),
        termination_grace_time=timedelta(seconds=2),
    )


def train(args: argparse.Namespace, call_wrapper: inprocess.CallWrapper | None = None) -> None:
    assert call_wrapper is not None  # The Wrapper passes it to the parameter of this type.
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))  # The Wrapper ends it earlier if necessary.
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    print(f"iteration {call_wrapper.iteration}: rank {rank} of {world_size} starts at step {step}", flush=True)
    while step < args.steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        call_wrapper.ping()  # From now on each step may take soft_timeout, even if it keeps the interpreter busy.
        if step % 10 == 0 and rank == 0:
            with call_wrapper.atomic(), commit(args.checkpoint) as temporary:  # No restart interrupts this block.
                torch.save({"step": step, "model": model.state_dict()}, temporary)
        if step == args.kill_at_step and rank == 1 and call_wrapper.iteration == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    with call_wrapper.disable_hang_protection():  # For work that may take longer than any step.
        dist.barrier()
    time.sleep(GLOO_REST_S)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--active", type=int, default=3, help="ranks that train; the others wait in reserve")
    parser.add_argument("--checkpoint", type=Path, default=Path("inprocess-advanced.pt"))
    parser.add_argument("--kill-at-step", type=int, help="rank 1 kills itself after this step, once")
    args = parser.parse_args()
    wrap(args.active)(train)(args)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
