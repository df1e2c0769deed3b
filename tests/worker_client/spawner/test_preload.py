"""What may be loaded ahead is read from the script's source; a line that forbids it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_wire.spawner_settings import SpawnerSettings

from tests.worker_client.spawner.conftest import Script
from worker_client.spawner import preload

WRAPPER = ("worker_client.inprocess.wrap", "worker_client.channel")


def choose(path: str, **settings: str) -> preload.Choice:
    return preload.choose(SpawnerSettings("j", (path,), **settings))  # pyright: ignore[reportArgumentType]


class TestWhatIsLoaded:
    @pytest.mark.parametrize(
        ("source", "modules"),
        [
            ("import torch", ("torch",)),
            ("import torch.distributed as dist\nimport numpy as np", ("torch.distributed", "numpy")),
            ("import numpy.random, os\nfrom torch.nn.parallel import X", ("numpy.random", "torch.nn.parallel")),
            ("from torch import nn\nimport torch", ("torch",)),
            ("try:\n    import torch\nexcept ImportError:\n    torch = None", ("torch",)),
            ("if __name__ == '__main__':\n    import torch", ("torch",)),
            ("import lightning as L", ("torch", "torch._dynamo")),
            ("from accelerate import Accelerator", ("torch", "torch._dynamo")),
            ("import torch\nm = torch.nn.parallel.DistributedDataParallel(x)", ("torch", "torch._dynamo")),
            ("import torch\nfrom x import FSDP\ndef f():\n    return FSDP(m)", ("torch", "torch._dynamo")),
            ("import torch, os\nos.environ['TORCH_LOGS'] = 'x'\nDDP(m)", ("torch",)),
            ("import torch\nfrom worker_client import inprocess", ("torch", *WRAPPER)),
            ("import worker_client.inprocess.rank_assignment\nimport torch", ("torch", *WRAPPER)),
            ("import torch\nfrom worker_client.inprocess import Wrapper", ("torch", *WRAPPER)),
            ("import torch\nimport worker_client.inprocessing", ("torch",)),
            ("import torch\nfrom worker_client import RankMonitorClient", ("torch",)),
            ("import torch\nfrom worker_client import X\nfrom worker_client import inprocess", ("torch", *WRAPPER)),
            ("from worker_client import inprocess", ()),
            ("import numpy", ()),
            ("if len(x) > 2:\n    import torch", ()),
            ("def main():\n    import torch", ()),
            ("import torchmetrics", ()),
            ("from . import torch", ()),
            ("import mytorch", ()),
        ],
    )
    def test_auto_takes_what_is_imported_in_any_case(
        self, script: Script, source: str, modules: tuple[str, ...]
    ) -> None:
        assert choose(script(source)).steps == modules

    def test_none_and_named_modules(self, script: Script) -> None:
        path = script("import torch")
        assert choose(path, preload="none").modules == ()
        assert choose(path, preload="torch").modules == ("torch",)
        assert choose(path, preload="numpy, mine").modules == ("numpy", "mine")

    @pytest.mark.parametrize("source", ["def f(:", "\0", "# -*- coding: nonsense -*-"])
    def test_a_source_that_cannot_be_read_is_left_to_the_interpreter(self, script: Script, source: str) -> None:
        assert choose(script(source)).steps == ()

    def test_a_module_is_found_without_being_imported(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        script("raise SystemExit('imported')", "job/pkg/__init__.py")
        path = script("import torch", "job/pkg/__main__.py")
        monkeypatch.chdir(Path(path).parent.parent)
        settings = SpawnerSettings("j", ("pkg",), entry="module")
        assert preload.source_path(settings) == path
        assert preload.choose(settings).modules == ("torch",)
        assert preload.source_path(SpawnerSettings("j", ("no.such",), entry="module")) == ""
