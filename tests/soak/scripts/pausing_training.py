"""Trains a small language model as nanoGPT does, with pauses that a healthy job has. It knows nothing of Holdfast.

    pausing_training.py SECONDS LONGEST_S SEED

Every rank draws the same plan: after so many steps, these ranks pause in this way, for at most LONGEST_S. What has
happened is in the file named in TRACE, two lines for each pause of a rank.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, BLOCK, BATCH, WIDTH = 64, 32, 4, 32
STEPS_BETWEEN = (20, 200)
SHORTEST = 0.1  # of the longest
CHECKPOINT_BYTES = 256 * 1024**2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = torch.nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.block(self.tokens(given)))
        return functional.cross_entropy(logits.view(-1, VOCABULARY), wanted.reshape(-1))


def read_from_a_slow_disk(for_s: float) -> None:
    """Blocks in one read, as a page fault or NFS would."""
    with subprocess.Popen(["sleep", f"{for_s}"], stdout=subprocess.PIPE) as disk:
        assert disk.stdout is not None
        os.read(disk.stdout.fileno(), 1)


def save(_for_s: float) -> None:
    """Writes a checkpoint to the disk."""
    path = f"checkpoint-{dist.get_rank()}"
    with open(path, "wb") as file:
        torch.save({"model": torch.zeros(CHECKPOINT_BYTES // 4)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.remove(path)


def collect_garbage(for_s: float) -> None:
    """Collects so many cycles that it takes about so long, in one call."""
    gc.disable()
    for _ in range(int(min(for_s, 2.0) * 1_000_000)):
        cycle: list[object] = []
        cycle.append(cycle)
    gc.collect()
    gc.enable()


def compile_source(for_s: float) -> None:
    """Compiles a long text in one call."""
    compile("x = 1\n" * int(min(for_s, 2.0) * 50_000), "long", "exec")


def compile_model(_for_s: float) -> None:
    """Compiles a model that was never compiled: Python, the compiler's processes, and what it loads."""
    torch.compiler.reset()
    model = torch.nn.Linear(random.randrange(8, 4096), WIDTH)
    torch.compile(model, dynamic=False)(torch.zeros(4, model.in_features))


PAUSES: dict[str, Callable[[float], object]] = {
    "sleep": time.sleep,
    "holds the GIL": lambda for_s: ctypes.PyDLL(None).usleep(int(for_s * 1e6)),
    "slow disk": read_from_a_slow_disk,
    "checkpoint": save,
    "garbage": collect_garbage,
    "long source": compile_source,
    "torch.compile": compile_model,
}


def pause(kind: str, for_s: float, step: int) -> None:
    note("pause begun", kind, step)
    begun_s = time.monotonic()
    PAUSES[kind](for_s)
    note("pause", kind, step, took_s=time.monotonic() - begun_s)


def note(what: str, kind: str, step: int, **more: float) -> None:
    line = {"what": what, "kind": kind, "rank": dist.get_rank(), "step": step, "at_unix": time.time(), **more}
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    seconds, longest_s, seed = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan = random.Random(seed)
    torch.manual_seed(1337 + rank)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    end_s = time.monotonic() + seconds
    step, next_pause = 0, 0
    while True:
        if step == next_pause:
            kind, who = plan.choice(sorted(PAUSES)), plan.choice([*range(ranks), None])
            for_s = [plan.uniform(SHORTEST, 1.0) * longest_s for _ in range(ranks)]
            if who is None or who == rank:
                pause(kind, for_s[rank], step)
            next_pause += plan.randint(*STEPS_BETWEEN)
        data = torch.randint(VOCABULARY, (BATCH, BLOCK + 1))
        loss = model(data[:, :-1], data[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        over = torch.tensor(float(time.monotonic() > end_s))
        dist.all_reduce(over)  # all ranks end at the same step
        if over.item():
            break
        step += 1
    if rank == 0:
        print(f"trained {step} steps")
    dist.barrier()
    os._exit(0)  # a group of gloo's hangs now and then while it is destroyed


main()
