"""A Lightning training that goes on from its checkpoint: each rank reports its first step; a rank is killed."""

# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# ruff: noqa: ANN001, ANN002, ANN003, E402 - people write without types; the first line is recorded before any import

from recording import CYCLE, RANK, STARTED_NS, await_go, note_fault, record

record("first_line", STARTED_NS)

import os  # isort: skip
import signal
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

record("imported")
FOLDER = Path("checkpoints")


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Reports(Callback):
    reported = False

    def setup(self, *_, **__) -> None:
        record("group")

    def on_train_start(self, *_) -> None:
        record("set_up")

    def on_train_batch_start(self, trainer, *_) -> None:
        if CYCLE == 0 and (RANK, trainer.global_step) == (1, 3):
            await_go()
            note_fault()
            record("fault")
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer, *_) -> None:
        if not self.reported and (CYCLE or trainer.global_step == 3):
            self.reported = True
            record("step")


def main() -> None:
    lightning.seed_everything(1, verbose=False)
    callbacks = [Reports(), ModelCheckpoint(FOLDER, save_last=True, every_n_train_steps=2)]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=6, callbacks=callbacks, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    last = FOLDER / "last.ckpt"
    loader = DataLoader(TensorDataset(torch.linspace(0, 1, 128 * 8).reshape(128, 8)), batch_size=4)
    trainer.fit(Model(), loader, ckpt_path=str(last) if last.exists() else None)


if __name__ == "__main__":
    main()
