# pyright: basic, reportMissingImports=false, reportPrivateImportUsage=false
"""A training loop with accelerate, as people write it for `accelerate launch`; heartbeats by two lines."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from worker_client import RankMonitorClient


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--with-tracking", action="store_true")
    parser.add_argument("--checkpointing_steps", type=int, default=None)
    parser.add_argument("--output_dir", default=".")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    os.write(1, f"rank {accelerator.process_index} is process {os.getpid()}\n".encode())
    set_seed(3)
    samples = torch.linspace(0, 1, 96 * 4).reshape(96, 4)
    loader = DataLoader(TensorDataset(samples, samples.sum(1, keepdim=True)), batch_size=4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()

    saved = os.path.join(args.output_dir, "newest")
    done = 0
    if os.path.islink(saved):
        done = int(os.readlink(saved).removeprefix("step_"))
        accelerator.load_state(os.path.realpath(saved))
    for step, (source, target) in enumerate(loader):
        if step < done:
            continue
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(source), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        monitor.send_heartbeat()
        time.sleep(0.1)
        accelerator.print(f"step {step}", flush=True)
        if args.checkpointing_steps and (step + 1) % args.checkpointing_steps == 0:
            name = f"step_{step + 1}"
            accelerator.save_state(os.path.join(args.output_dir, name))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                os.symlink(name, saved + ".new")
                os.replace(saved + ".new", saved)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    os.write(1, f"rank {accelerator.process_index} ends with {total!r}\n".encode())
    monitor.shutdown_workload_monitoring()
    accelerator.end_training()


if __name__ == "__main__":
    main()
