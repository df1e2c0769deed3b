"""The callback in a real transformers Trainer, watched by a supervisor at a real socket."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.fork_server import fork_server

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.timeout(300),  # transformers alone takes long to import
]

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
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
all_reduce_max.maxima = lambda values: compared.append(trainer.state.global_step) or _maxima(values)
served = FakeSupervisor(Path(os.environ["HOLDFAST_SOCKET"]), shares_page=False)
data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
callback = FaultToleranceCallback(autoresume=True)
assert isinstance(callback, TrainerCallback)
for number, (steps, options) in enumerate(json.loads(sys.argv[2])):
    arguments = TrainingArguments(
        output_dir=sys.argv[1], max_steps=steps, per_device_train_batch_size=2, save_steps=2,
        eval_strategy="steps", eval_steps=3, eval_on_start=True,
        report_to=[], use_cpu=True, disable_tqdm=True, **options,
    )
    trainer = Trainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=number > 0)
    connection = served.client(number)
    served.wait(lambda: connection.of("goodbye"), "the end")
    print(json.dumps({
        "heartbeats": connection.seen().heartbeats, "limits": len(connection.of("limits_calculated")),
        "compared": sorted({*compared}), "state": json.loads((Path(sys.argv[1]) / "_ft_state_.json").read_text())}))
    compared.clear()
served.stop()
"""


def test_limits_are_learned_once_they_have_been_measured(tmp_path: Path, rank_environment: Path):
    """The first save comes before the first evaluation, and only a run that resumes measures how long that takes."""
    runs: list[tuple[int, dict[str, bool]]] = [(6, {}), (10, {}), (14, {"ignore_data_skip": True})]
    lone = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment = lone | {"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "finished")}
    transformers = fork_server("transformers")
    done = transformers.ran(
        SCRIPT, str(tmp_path), json.dumps(runs), environment=environment, folder=ROOT, timeout_s=240
    )
    assert done.returncode == 0, done.stderr
    fresh, skipped, resumed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"heart')]
    assert [each["compared"] for each in (fresh, skipped, resumed)] == [[4, 6], [10], [12, 14]]
    for told in (fresh, skipped):
        assert told["limits"]
        learned = told["state"]["current_timeouts"]
        assert learned["heartbeat"]["were_calculated"] is True
        assert learned["heartbeat"]["initial"] is None
        assert learned["section"]["calculated_sections"] == ["checkpointing", "step"]
        assert learned["section"]["is_out_of_section_calculated"] is True
    learned = resumed["state"]["current_timeouts"]
    assert learned["heartbeat"]["initial"] > 0
    assert learned["section"]["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert (tmp_path / "finished").exists()


FAILED_SCRIPT = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from transformers import Trainer, TrainingArguments
from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient, workload_monitoring
from worker_client.transformers import FaultToleranceCallback

class Model(torch.nn.Module):
    fails_at, failed_s = 3, 0.0
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 1), 0
    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == Model.fails_at:
            Model.failed_s = time.monotonic()
            raise RuntimeError("by intention")
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

served = FakeSupervisor(Path(os.environ["HOLDFAST_SOCKET"]), shares_page=False)
scripts_own = RankMonitorClient()
scripts_own.init_workload_monitoring()
data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
kept = []  # as a notebook keeps what it has made
for callback in (FaultToleranceCallback(), FaultToleranceCallback()):
    arguments = TrainingArguments(
        output_dir=sys.argv[1], max_steps=6, per_device_train_batch_size=2, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True,
    )
    kept.append(Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback]))
    try:
        kept[-1].train()
    except RuntimeError:
        Model.fails_at = 0
        while time.monotonic() < Model.failed_s + 2:
            pass
print("longest step:", workload_monitoring.current().progress.sections.measure()[1]["step"] / 1e9)
served.stop()
"""


def test_a_section_that_a_failed_training_left_open_is_not_measured(tmp_path: Path, rank_environment: Path):
    lone = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    transformers = fork_server("transformers")
    done = transformers.ran(FAILED_SCRIPT, str(tmp_path), environment=lone, folder=ROOT, timeout_s=240)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("longest step:")]
    assert float(line.partition(": ")[2]) < 1.9
