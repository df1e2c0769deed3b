"""Which of Lightning's ways to write a checkpoint becomes a commit? Real trainings: test_lightning.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from worker_client import lightning_checkpoints


class TorchCheckpointIO:
    """Lightning's, in short."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def save_checkpoint(self, checkpoint: object, path: str | Path, storage_options: object = None) -> None:
        self.written.append(str(path))
        if "://" not in str(path):
            Path(path).write_text(str(checkpoint))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink()


class AsyncCheckpointIO(TorchCheckpointIO):
    pass


@pytest.fixture(autouse=True)
def _no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.delenv("HOLDFAST_FENCING_EPOCH", raising=False)


def trainer_with(io: object) -> object:
    return SimpleNamespace(strategy=SimpleNamespace(checkpoint_io=io))


@pytest.mark.parametrize(
    "trainer", [SimpleNamespace(), SimpleNamespace(strategy=None), trainer_with(AsyncCheckpointIO())]
)
def test_other_ways_stay_as_they_are(trainer: object):
    assert lightning_checkpoints.of_trainer(trainer) is None


def test_a_file_is_committed_until_the_end_and_a_path_in_an_object_store_is_not(tmp_path: Path):
    io = TorchCheckpointIO()
    path = tmp_path / "new folder" / "last.ckpt"
    plugin = lightning_checkpoints.of_trainer(trainer_with(io))
    assert plugin is not None
    assert plugin is io
    lightning_checkpoints.begin(plugin)
    assert lightning_checkpoints.of_trainer(trainer_with(io)) is None, "it commits already"
    plugin.save_checkpoint("10", str(path), storage_options=None)
    assert path.read_text() == "10"
    assert io.written[0].endswith("-part-last.ckpt")
    plugin.save_checkpoint("10", "s3://bucket/last.ckpt")
    assert io.written[1] == "s3://bucket/last.ckpt"
    plugin.remove_checkpoint(path)
    assert list(path.parent.iterdir()) == []
    lightning_checkpoints.end(plugin)
    plugin.save_checkpoint("10", path)
    assert io.written[2] == str(path)
