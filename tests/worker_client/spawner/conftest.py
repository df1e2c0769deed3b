from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.worker_client.spawner.plain_python import PROBE
from tests.worker_client.spawner.rig import clean_env

Script = Callable[..., str]
TORCH = """
import os
LOADED_BY = os.getpid()
PRIORITY = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

class default_generator:
    seed = staticmethod(lambda: 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Yields a function that writes a script into a folder of its own and returns its path."""

    def write(source: str, name: str = "job/train.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return str(path)

    return write


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Returns an environment in which `torch` is a small module."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "torch.py").write_text(TORCH)
    return clean_env(PYTHONPATH=str(library))


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return Path(shutil.copy(PROBE, folder / "probe.py"))
