"""A small language model trained as nanoGPT trains one. It knows nothing of Holdfast.

    plain_ddp.py STEPS [STEP:RANK:WHAT …]

In the first cycle, that rank does WHAT at that step: stop (SIGSTOP), call (an endless C call that holds the GIL), wait
(an endless C call that does not), leave (it exits with 0, and a child keeps its sockets open), pause (3 s).
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, BLOCK, BATCH, WIDTH = 64, 32, 4, 32


def trace(what: str, **facts: object) -> None:
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps({"what": what, "rank": dist.get_rank(), "at_unix": time.time(), **facts}) + "\n")


def leave() -> None:
    if os.fork() == 0:
        signal.pause()
    os._exit(0)


HAPPENINGS: dict[str, Callable[[], object]] = {
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "call": lambda: ctypes.PyDLL(None).sleep(3600),
    "wait": lambda: ctypes.CDLL(None).sleep(3600),
    "leave": leave,
    "pause": lambda: time.sleep(3),
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = torch.nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.block(self.tokens(given)))
        return functional.cross_entropy(logits.view(-1, VOCABULARY), wanted.reshape(-1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, cycle = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(1337 + rank)
    planned = {(int(step), int(of)): what for step, of, what in (each.split(":") for each in sys.argv[2:])}
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    begun_s = time.monotonic()
    for step in range(int(sys.argv[1])):
        what = planned.get((step, rank)) if cycle == 0 else None
        if what is not None:
            trace(what, step=step)
            HAPPENINGS[what]()
        data = torch.randint(VOCABULARY, (BATCH, BLOCK + 1))
        loss = model(data[:, :-1], data[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    trace("trained", cycle=cycle, took_s=time.monotonic() - begun_s)
    dist.barrier()
    os._exit(0)  # a group of gloo's hangs now and then while it is destroyed


main()
