# pyright: basic, reportPrivateImportUsage=false
"""A Trainer with snapshots, run as `python -m vision.train`; relative imports, and data loaders in processes."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from . import data


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path, pause_s):
        self.rank = int(os.environ["RANK"])
        self.model, self.optimizer, self.train_data = model, optimizer, train_data
        self.save_every, self.snapshot_path, self.pause_s = save_every, snapshot_path, pause_s
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)

    def _load_snapshot(self, path):
        snapshot = torch.load(path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"resumed at {self.epochs_run}", flush=True)

    def _save_snapshot(self, epoch):
        torch.save(
            {
                "MODEL_STATE": self.model.module.state_dict(), "OPTIMIZER": self.optimizer.state_dict(),
                "EPOCHS_RUN": epoch + 1,
            },
            self.snapshot_path + ".new",
        )  # fmt: skip
        os.replace(self.snapshot_path + ".new", self.snapshot_path)

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            time.sleep(self.pause_s)
        return loss.item()

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            loss = self._run_epoch(epoch)
            if self.rank == 0:
                print(f"step {epoch} loss {loss:.4f}", flush=True)
                if epoch % self.save_every == 0:
                    self._save_snapshot(epoch)
        total = sum(parameter.double().sum().item() for parameter in self.model.parameters())
        os.write(1, f"rank {self.rank} ends with {total!r}\n".encode())


def main(arguments):
    dist.init_process_group("gloo")
    os.write(1, f"rank {dist.get_rank()} is process {os.getpid()}\n".encode())
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2, track_running_stats=False), torch.nn.Flatten(),
        torch.nn.Linear(32, 3),
    )  # fmt: skip
    pictures = data.Pictures()
    loader = DataLoader(
        pictures, arguments.batch_size, num_workers=arguments.workers, sampler=DistributedSampler(pictures),
        persistent_workers=True,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    Trainer(model, loader, optimizer, arguments.save_every, "snapshot.pt", arguments.pause_s).train(arguments.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", "-b", default=32, type=int)
    parser.add_argument("--workers", "-j", default=1, type=int)
    parser.add_argument("--pause_s", type=float, default=0.0)
    assert __package__ == "vision", sys.path
    main(parser.parse_args())
