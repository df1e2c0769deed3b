# pyright: basic, reportUndefinedVariable=false, reportArgumentType=false, reportPrivateImportUsage=false, reportMissingImports=false
"""A training whose settings are globals that a file and `--name=value` override; no function, no guard.

python train.py config/tiny.py --max_iters=10
"""

import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from model import ByteModel, Shape
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
out_dir = "out"
max_iters = 1000
batch_size = 12
block_size = 64
width = 128
learning_rate = 6e-4
gradient_accumulation_steps = 4
save_interval = 100
step_s = 0.0
compile = True
backend = "nccl"
device = "cuda"
# -----------------------------------------------------------------------------
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | bool | str)]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, seed_offset, ddp_rank = True, 0, 0

os.write(1, f"rank {ddp_rank} is process {os.getpid()}\n".encode())
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type=device)
data = np.memmap("train.bin", dtype=np.uint8, mode="r")


def get_batch(iter_num, micro_step):
    picked = torch.Generator().manual_seed(iter_num * 1000 + micro_step * 10 + seed_offset)
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=picked)
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


iter_num = 0
model = ByteModel(Shape(width=width, block_size=block_size)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
ckpt_path = os.path.join(out_dir, "ckpt.pt")
if os.path.exists(ckpt_path):
    checkpoint = torch.load(ckpt_path, map_location=device, weights_only=False)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    print(f"resumed at {iter_num}", flush=True)
raw_model = model
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model)

while True:
    if iter_num % save_interval == 0 and master_process:
        checkpoint = {
            "model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num,
            "config": config,
        }  # fmt: skip
        torch.save(checkpoint, ckpt_path + ".new")
        os.replace(ckpt_path + ".new", ckpt_path)
    if iter_num >= max_iters:
        break
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        x, y = get_batch(iter_num, micro_step)
        with ctx:
            loss = model(x, y) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    time.sleep(step_s)
    if master_process:
        print(f"step {iter_num} loss {loss.item() * gradient_accumulation_steps:.4f}", flush=True)

os.write(1, f"rank {ddp_rank} ends with {sum(p.double().sum().item() for p in raw_model.parameters())!r}\n".encode())
if ddp:
    destroy_process_group()
