"""A model in DDP, compiled by torch.compile: each rank reports its first step; a rank is killed between two steps."""

# torch's annotations are too partial for strict types.
# pyright: basic

# ruff: noqa: E402 - the first line is recorded before anything is imported

from recording import CYCLE, RANK, STARTED_NS, await_go, note_fault, record

record("first_line", STARTED_NS)

import os  # isort: skip
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

record("imported")
WIDTH = 64

dist.init_process_group("gloo")
record("group")
torch.manual_seed(0)
layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH))
model = torch.compile(DistributedDataParallel(torch.nn.Sequential(*layers)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    if CYCLE == 0 and (RANK, step) == (1, 2):
        await_go()
        note_fault()
        record("fault")
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    if step == 0:
        record("step")
dist.destroy_process_group()
