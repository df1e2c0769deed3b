# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001 - people write such scripts without types
"""A Lightning training with its own checkpoints; rank 1 dies at KILL_AT_STEP, then stops at STOP_AT_STEP."""

import os
import signal
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = torch.linspace(0, 1, 64 * 8).reshape(64, 8)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def on_train_epoch_end(self) -> None:
        total = sum(parameter.abs().sum().item() for parameter in self.parameters())
        sys.stdout.write(
            f"rank {self.global_rank} epoch {self.current_epoch} of {self.trainer.world_size}: {total:.7f}\n"
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Faults(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if trainer.global_rank != 1:
            return
        cycle, step = os.environ["TORCHELASTIC_RESTART_COUNT"], str(trainer.global_step)
        if (cycle, step) == ("0", os.environ.get("KILL_AT_STEP")):
            os.kill(os.getpid(), signal.SIGKILL)
        if (cycle, step) == ("1", os.environ.get("STOP_AT_STEP")):
            os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    lightning.seed_everything(1, verbose=False)
    folder = Path(sys.argv[1])
    callbacks: list[Callback] = [Faults(), ModelCheckpoint(folder, save_last=True)]
    if "--monitored" in sys.argv:
        from worker_client.lightning import FaultToleranceCallback, FaultToleranceSectionsCallback

        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        callbacks.append((FaultToleranceSectionsCallback if first else FaultToleranceCallback)(exp_dir=folder))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, callbacks=callbacks,
        default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    last = folder / "last.ckpt"
    loader = DataLoader(TensorDataset(SAMPLES), batch_size=8)
    trainer.fit(Model(), loader, ckpt_path=str(last) if last.exists() else None)
    sys.stdout.write(f"rank {trainer.global_rank} done in {type(trainer.strategy.cluster_environment).__name__}\n")


if __name__ == "__main__":
    main()
