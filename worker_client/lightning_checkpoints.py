"""How do Lightning's own checkpoints become commits?

Only what Lightning's plain CheckpointIO writes: one file, by one rank, whole before the call returns. Other plugins and
strategies write in the background, in parts, or to an object store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from worker_client import commit_record
from worker_client.committing import commit

PLAIN = "TorchCheckpointIO"


class CheckpointIO(Protocol):
    """The part of Lightning's plugin that is used here."""

    save_checkpoint: Callable[..., None]
    remove_checkpoint: Callable[..., None]


def of_trainer(trainer: object) -> CheckpointIO | None:
    """Returns the plugin that writes the trainer's checkpoints; None: they are committed already, or can't be."""
    io: CheckpointIO | None = getattr(getattr(trainer, "strategy", None), "checkpoint_io", None)
    return io if type(io).__name__ == PLAIN and "save_checkpoint" not in vars(io) else None


def begin(io: CheckpointIO) -> None:
    """Lets the plugin commit what it writes, until `end`."""
    save, remove = io.save_checkpoint, io.remove_checkpoint

    def save_checkpoint(checkpoint: object, path: str | os.PathLike[str], **options: object) -> None:
        if not _is_local(path):
            save(checkpoint, path, **options)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with commit(path) as temporary:
            save(checkpoint, temporary, **options)

    def remove_checkpoint(path: str | os.PathLike[str]) -> None:
        remove(path)
        if _is_local(path):
            with contextlib.suppress(OSError):
                commit_record.record_path(Path(path)).unlink()

    io.save_checkpoint, io.remove_checkpoint = save_checkpoint, remove_checkpoint


def end(io: CheckpointIO) -> None:
    """Undoes `begin`."""
    for name in ("save_checkpoint", "remove_checkpoint"):
        vars(io).pop(name, None)


def _is_local(path: str | os.PathLike[str]) -> bool:
    return "://" not in os.fspath(path)
