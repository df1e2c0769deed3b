"""The callback in a real transformers Trainer, watched by a supervisor at a real socket."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.timeout(300),  # transformers alone takes long to import
]

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import all_reduce_max
from worker_client.transformers import FaultToleranceCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

compared = []
_maxima = all_reduce_max.maxima
all_reduce_max.maxima = lambda values: compared.append(len(values)) or _maxima(values)
served = FakeSupervisor(Path(os.environ["HOLDFAST_SOCKET"]), shares_page=False)
data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
callback = FaultToleranceCallback(autoresume=True)
assert isinstance(callback, TrainerCallback)
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=6, per_device_train_batch_size=2, save_steps=2,
    eval_strategy="steps", eval_steps=3,
    report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()
connection = served.client(0)
served.wait(lambda: connection.of("goodbye"), "the end")
seen = connection.seen()
print(json.dumps({
    "heartbeats": seen.heartbeats, "limits": len(connection.of("limits_calculated")),
    "comparisons": compared.count(3)}))
served.stop()
"""


def test_a_training_with_evaluation_and_saves(tmp_path: Path, rank_environment: Path):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    lone = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment = lone | {"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["limits"]
    state = json.loads((tmp_path / "_ft_state_.json").read_text())["current_timeouts"]
    assert state["heartbeat"]["were_calculated"] is True
    assert state["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert (tmp_path / "finished").exists()
