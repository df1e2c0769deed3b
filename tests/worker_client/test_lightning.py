"""The callbacks in a real Lightning training, watched by a supervisor at a real socket."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import fork_server

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"),
    pytest.mark.timeout(300),  # Lightning alone takes long to import
]

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import WorkloadAction, WorkloadControlRequest
from worker_client import lightning as holdfast

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def on_train_batch_start(self, batch, index):
        return -1 if os.environ.get("SKIP_FROM") == str(index) else None
    def training_step(self, batch, index):
        if os.environ.get("FAIL_AT") == str(self.global_step):
            raise ValueError("bad batch")
        return self.layer(batch[0]).sum()
    validation_step = test_step = lambda self, batch, index: None
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

folder, kind, epochs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
served = FakeSupervisor(Path(os.environ["HOLDFAST_SOCKET"]), shares_page=False)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)

class WithNone:
    def __iter__(self):
        yield from [*data, None, *data]
    def __len__(self):
        return 9

train_data = WithNone() if "SKIP_FROM" in os.environ else data
if "ANOTHER_LACKS_LIMITS" in os.environ:  # a rank that is not here could not read them
    holdfast.all_reduce_max.maxima = lambda values: [1.0] if values == [0.0] else list(values)

compared = []
_maxima = holdfast.all_reduce_max.maxima
holdfast.all_reduce_max.maxima = lambda values: compared.append(trainer.global_step) or _maxima(values)

def policy(error):
    return WorkloadControlRequest(WorkloadAction.ShutdownWorkload, str(error))

callback = getattr(holdfast, kind)(True, True, None, exp_dir=folder, exc_handling_policy=policy)
assert isinstance(callback, pl.Callback) and type(callback) is getattr(holdfast, kind)
trainer = pl.Trainer(
    max_epochs=epochs, accelerator="cpu",
    callbacks=[callback, ModelCheckpoint(folder / "ckpt", save_last=True, every_n_train_steps=2)],
    logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
)
last = folder / "ckpt" / "last.ckpt"
code = 0
try:
    trainer.fit(Model(), train_data, data, ckpt_path=last if last.exists() else None, weights_only=False)
except ValueError:
    code = 1
connection = served.client(0)
served.wait(lambda: connection.of("goodbye"), "the end")
seen = connection.seen()
assert "save_checkpoint" not in vars(trainer)
assert not {"save_checkpoint", "remove_checkpoint"} & vars(trainer.strategy.checkpoint_io).keys()
print(json.dumps({
    "connections": len(served.connections), "heartbeats": seen.heartbeats, "steps": seen.steps_since_first,
    "limits": len(connection.of("limits_calculated")),
    "compared": sorted({*compared}),
    "control": [c.workload_control.description for each in served.connections for c in each.of("workload_control")],
}))
served.stop()
sys.exit(code)
"""


def _fit(tmp_path: Path, kind: str, epochs: int, **more: str) -> tuple[int, dict[str, object]]:
    environment = os.environ | {"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished")} | more
    lightning = fork_server("lightning.pytorch")
    done = lightning.ran(SCRIPT, str(tmp_path), kind, str(epochs), environment=environment, folder=ROOT, timeout_s=140)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_sections(tmp_path: Path, rank_environment: Path):
    code, told = _fit(tmp_path, "FaultToleranceSectionsCallback", 2, HOLDFAST_FENCING_EPOCH="7")
    assert code == 0
    checkpoints = sorted(each.name for each in (tmp_path / "ckpt").iterdir())
    assert [name for name in checkpoints if name.startswith(".holdfast-")] == [
        f".holdfast-token-{name}" for name in checkpoints if not name.startswith(".")
    ], "each checkpoint that is there was committed, and nothing else is left"
    assert len(checkpoints) == 4
    assert (told["connections"], told["heartbeats"]) == (1, 0)
    assert told["limits"]
    assert told["compared"] == [6, 8], "the saves at 2 and 4 come before the first validation"
    state = json.loads((tmp_path / "_ft_state_.json").read_text())
    assert state["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "step"]
    assert (tmp_path / "finished").exists()
    code, told = _fit(tmp_path, "FaultToleranceSectionsCallback", 4)
    assert code == 0
    assert told["compared"] == [14, 16], "a validation of an earlier run does not count"
    state = json.loads((tmp_path / "_ft_state_.json").read_text())
    assert state["current_timeouts"]["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]


@pytest.mark.soak
def test_an_epoch_that_is_cut_short_and_a_batch_of_none(tmp_path: Path, rank_environment: Path):
    code, told = _fit(tmp_path, "FaultToleranceSectionsCallback", 2, SKIP_FROM="6")
    assert code == 0
    assert told["compared"] == [], "Lightning validates after whole epochs only, so no validation has been measured"


def test_heartbeats_are_learned_in_the_run_that_loads_and_saves(tmp_path: Path, rank_environment: Path):
    code, told = _fit(tmp_path, "FaultToleranceCallback", 2, FAIL_AT="5")
    assert code == 1
    assert told["control"] == ["bad batch"]
    assert told["limits"] == 0
    assert not (tmp_path / "_ft_state_.json").exists()
    assert (tmp_path / "finished").exists()
    (tmp_path / "finished").unlink()
    code, told = _fit(tmp_path, "FaultToleranceCallback", 3)
    assert code == 0
    assert isinstance(told["heartbeats"], int)
    assert told["heartbeats"] > 4
    assert told["limits"] == 1
    assert told["compared"] == [9], "not before the validation that follows step 8"
    state = json.loads((tmp_path / "_ft_state_.json").read_text())
    assert state["current_timeouts"]["heartbeat"]["were_calculated"] is True
    assert (tmp_path / "finished").exists()
    code, told = _fit(tmp_path, "FaultToleranceCallback", 5, ANOTHER_LACKS_LIMITS="1")
    assert code == 0
    assert told["limits"] == 2, "the loaded ones, and those that all ranks have calculated again"


PAGE_SCRIPT = """
import torch
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def on_train_start(self):
        print("from step", self.global_step)
    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

model = Model()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)
"""


@pytest.mark.soak
def test_a_second_run_of_the_page_goes_on_where_the_first_one_was(tmp_path: Path):
    page = (ROOT / "docs" / "how-to" / "lightning.md").read_text()
    block = page.partition("```python\n")[2].partition("```")[0]
    for epochs, expected in ((1, "from step 0"), (2, "from step 4")):
        script = PAGE_SCRIPT + block.replace("/shared/run1", str(tmp_path / "run1")).replace('"auto"', '"cpu"').replace(
            "devices=8", "devices=1"
        ).replace("max_epochs=10", f"max_epochs={epochs}")
        command = [sys.executable, "-W", "ignore", "-c", script]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=140)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
