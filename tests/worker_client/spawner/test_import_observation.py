"""What does a worker's watch note of its imports, and does it ever stand in the way of one?"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from importlib.machinery import FileFinder
from pathlib import Path

import pytest

from worker_client.spawner import import_observation
from worker_client.spawner.import_observation import SLOT_BYTES, Import, Notes, Slot

NOTES = Notes((Import("heavy", 10, 5, {"A": "1", "B": None}, ("/mine",)), Import("torch", 20, 0, {}, ())), "")


@pytest.fixture
def page() -> mmap.mmap:
    return mmap.mmap(-1, 2 * SLOT_BYTES)


def test_each_worker_has_a_slot_of_its_own(page: mmap.mmap) -> None:
    first, second = Slot(page, 0), Slot(page, 1)
    assert first.write(NOTES)
    first.stamp(50)
    assert second.read() == Notes()
    assert first.read() == NOTES._replace(imports=(NOTES.imports[0], NOTES.imports[1]._replace(took_ns=30)))
    second.close()
    assert second.is_closed
    assert not first.is_closed
    second.clear()
    assert not second.is_closed


def test_an_objection_is_passed_on(page: mmap.mmap) -> None:
    slot = Slot(page, 0)
    slot.write(Notes((), "replaced sys.path before it imported torch"))
    assert slot.read() == Notes((), "replaced sys.path before it imported torch")


def test_notes_that_are_too_long_or_half_written_are_none(page: mmap.mmap) -> None:
    slot = Slot(page, 0)
    assert not slot.write(Notes((), "x" * SLOT_BYTES))
    slot.write(NOTES)
    page[30] = 0
    assert slot.read() == Notes()


# A worker: observes, imports as the test says, and prints what its slot has.
WORKER = """
import mmap, os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from importlib.machinery import FileFinder
from worker_client.spawner import import_observation
plain, page = FileFinder.find_spec, mmap.mmap(-1, import_observation.SLOT_BYTES)
slot = import_observation.Slot(page, 0)
import_observation.observe(slot)
{script}
notes = slot.read()
print([each.name for each in notes.imports], [each.changed for each in notes.imports], notes.objection,
      FileFinder.find_spec is plain)
"""


def noted(tmp_path: Path, script: str) -> str:
    library = tmp_path / "site-packages"
    library.mkdir()
    (tmp_path / "mine.py").write_text("import heavy")
    (library / "torch").mkdir()
    for name, source in (
        ("torch/__init__", ""), ("torch/compiler", ""), ("heavy", "import lower"), ("lower", ""), ("light", ""),
    ):  # fmt: skip
        (library / f"{name}.py").write_text(source)
    root = Path(__file__).parents[3]
    path = os.pathsep.join(map(str, (tmp_path, library, root, root / "proto")))
    done = subprocess.run(
        [sys.executable, "-c", WORKER.replace("{script}", script)],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"], "SHELL": "/bin/sh"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import json, mine, torch", "['heavy', 'torch'] [{}, {}]  False"),
        ("os.environ['A'] = '1'\nimport torch\ndel os.environ['SHELL']\nimport light",
         "['torch', 'light'] [{'A': '1'}, {'A': '1', 'SHELL': None}]  False"),
        ("import importlib.util\nimportlib.util.find_spec('torch')", "[] []  False"),
        ("sys.path.pop(1)\nimport torch", "[] [] replaced sys.path before it imported torch True"),
        ("slot.close()\nimport torch", "[] []  True"),
        # Once there is a group, only parts of torch count: torch.compile loads some at the first step.
        ("import torch, types; sys.modules['torch.distributed'] = types.SimpleNamespace(is_initialized=lambda: True)\n"
         "import heavy, torch.compiler, light", "['torch', 'torch.compiler'] [{}, {}]  False"),
    ],
)  # fmt: skip
def test_what_a_worker_imports_itself_is_noted_with_what_it_changed_before(
    tmp_path: Path, script: str, expected: str
) -> None:
    assert noted(tmp_path, script) == expected


def test_where_torch_cannot_be_found_nothing_is_watched(
    page: mmap.mmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = FileFinder.find_spec
    import_observation.observe(Slot(page, 0))
    assert FileFinder.find_spec is before
