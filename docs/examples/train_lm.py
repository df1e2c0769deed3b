"""Trains a small byte-level language model on the Python standard library's own sources, with DDP on CPU.

Any launcher that speaks torchrun's environment can start it:

    holdfast run --nproc-per-node 4 docs/examples/train_lm.py --steps 200
    torchrun --nproc-per-node 4 docs/examples/train_lm.py --steps 200

Only the lines that name `monitor` or `commit` are for Holdfast. The faults are for the demo: each strikes once, on its
own rank at its own step, and leaves a file in the checkpoint folder.
"""

# torch's annotations are too partial for strict types.
# pyright: basic

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sysconfig
import time
from pathlib import Path
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from worker_client import RankMonitorClient, commit

CONTEXT_BYTES = 64
BATCH_PER_RANK = 8
WIDTH = 64
CHECKPOINT_EVERY_STEPS = 10
TEXT_BYTES_MAX = 2_000_000


class Checkpoint(TypedDict):
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, object]


class LanguageModel(nn.Module):
    """A transformer that predicts the next byte."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT_BYTES, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT_BYTES), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        seen = self.layers(self.bytes(text) + self.places, mask=self.mask, is_causal=True)
        return self.head(seen)


def read_text() -> Tensor:
    """Returns the standard library's modules, in the order of their names, as bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)
    return torch.frombuffer(bytearray(text[:TEXT_BYTES_MAX]), dtype=torch.uint8)


def read_batch(text: Tensor, step: int, rank: int) -> Tensor:
    """Returns a batch: the same bytes for the same step and rank, however often the job has restarted."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    starts = torch.randint(len(text) - CONTEXT_BYTES - 1, (BATCH_PER_RANK,), generator=generator)
    return torch.stack([text[start : start + CONTEXT_BYTES + 1] for start in starts.tolist()]).long()


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Saves the checkpoint whole or not at all: a rank killed here, or replaced meanwhile, leaves what is there."""
    with commit(path) as temporary:
        torch.save(checkpoint, temporary)


class Faults:
    """What should go wrong, where and when; each fault once in the life of the job."""

    def __init__(self, folder: Path, rank: int, plan: dict[str, int | None]) -> None:
        self.folder = folder
        self.rank = rank
        self.plan = plan

    def strike(self, step: int) -> None:
        if self._is_due("kill", 1, step):
            print(f"* step {step}: rank 1 is killed (SIGKILL); ranks that lose it may print tracebacks", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_due("hang", 2, step):
            print(f"* step {step}: rank 2 hangs from now on", flush=True)
            hang()
        if self._is_due("hold_gil", 3, step):
            print(f"* step {step}: rank 3 holds the GIL from now on", flush=True)
            hold_the_gil()

    def _is_due(self, what: str, rank: int, step: int) -> bool:
        marker = self.folder / f"struck-{what}"
        if rank != self.rank or self.plan[what] != step or marker.exists():
            return False
        marker.write_text(json.dumps({"what": what, "rank": rank, "step": step, "at": time.time()}))
        return True


def hang() -> None:
    """Hangs like a data loader whose file system has stopped answering."""
    while True:
        time.sleep(3600)


def hold_the_gil() -> None:
    """Holds the GIL like a C extension that computes indefinitely and lets no other Python thread run."""
    ctypes.PyDLL(None).sleep(3600)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of checkpoint and loss curve")
    for what, rank in (("kill", 1), ("hang", 2), ("hold-gil", 3)):
        parser.add_argument(f"--{what}-at", type=int, metavar="STEP", help=f"the fault, once, on rank {rank}")
    return parser.parse_args()


def train(arguments: argparse.Namespace, monitor: RankMonitorClient) -> None:
    rank = dist.get_rank()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    plan = {"kill": arguments.kill_at, "hang": arguments.hang_at, "hold_gil": arguments.hold_gil_at}
    faults = Faults(output, rank, plan)
    text = read_text()

    torch.manual_seed(0)
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    path = output / "checkpoint.pt"
    first_step = 0
    if path.exists():
        checkpoint: Checkpoint = torch.load(path, weights_only=True)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_step = checkpoint["step"]

    for step in range(first_step, arguments.steps):
        monitor.send_heartbeat()
        monitor.start_section("batch")
        faults.strike(step)
        batch = read_batch(text, step, rank)
        monitor.end_section("batch")

        monitor.start_section("step")
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        monitor.end_section("step")

        if rank == 0:
            report(output, step, float(mean_loss) / dist.get_world_size(), resumed=0 < step == first_step)
            if (step + 1) % CHECKPOINT_EVERY_STEPS == 0:
                state = Checkpoint(step=step + 1, model=model.module.state_dict(), optimizer=optimizer.state_dict())
                save(path, state)


def report(output: Path, step: int, loss: float, *, resumed: bool) -> None:
    if resumed:
        print(f"resumed at step {step}, loss {loss:.3f}", flush=True)
    elif step % 20 == 0:
        print(f"step {step}, loss {loss:.3f}", flush=True)
    with (output / "curve.jsonl").open("a") as curve:
        curve.write(json.dumps({"at": time.time(), "step": step, "loss": loss, "resumed": resumed}) + "\n")


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    train(arguments, monitor)
    monitor.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
