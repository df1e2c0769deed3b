"""Do the targets of the Makefile install what was named, and does `make clean` remove what they made?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT = {"__pycache__/", "*.egg-info/", ".pytest_cache/"}  # no target of ours is what makes them


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which `make install` has installed the default torch."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    stamps = tmp_path / ".venv"
    stamps.mkdir()
    for name in (".venv", ".torch", ".holdfast"):
        (stamps / name).touch()
    note(tmp_path, "torch==2.13.0 numpy")
    (stamps / "bin").mkdir()
    (stamps / "bin/python").write_text('#!/bin/sh\necho "$*" >> "$CALLS"\n')
    (stamps / "bin/python").chmod(0o755)
    return tmp_path


def note(folder: Path, torch: str) -> None:
    """Notes which torch was installed, between the environment and Holdfast."""
    (folder / ".venv/.torch").write_text(f"{torch}\n")
    for later_s, name in enumerate((".venv/.venv", ".venv/.torch", "pyproject.toml", ".venv/.holdfast")):
        os.utime(folder / name, (later_s, later_s))


def made(folder: Path, *arguments: str) -> list[str]:
    """Returns the arguments of each call of the environment's Python."""
    calls = folder / "calls"
    calls.write_text("")
    environ = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ} | {"CALLS": str(calls)}
    make = ["make", "-s", "install", *arguments]
    subprocess.run(make, cwd=folder, env=environ, check=True, capture_output=True, timeout=30)
    return calls.read_text().splitlines()


@pytest.mark.parametrize(
    "torch",
    ["torch==2.13.0 numpy --index-url https://download.pytorch.org/whl/cpu", "'torch>=2.5' numpy"],
    ids=["for the CPU", "a bound"],
)
def test_a_torch_that_somebody_names_is_installed_though_another_one_was(installed: Path, torch: str):
    before, (uninstall, install, *_) = set(installed.iterdir()), made(installed, f"TORCH={torch}")
    assert uninstall == "-m pip -q uninstall -y torch", "pip would keep one of the same version"
    assert install.endswith(f" install {torch.replace(chr(39), '')}")
    assert set(installed.iterdir()) == {*before, installed / "calls"}
    note(installed, torch)
    assert made(installed, f"TORCH={torch}") == []
    assert made(installed) == [], "the default replaces no torch that somebody has chosen"


def test_clean_removes_what_the_targets_make():
    made = set((ROOT / ".gitignore").read_text().split()) - KEPT
    (recipe,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\trm -rf $(VENV)")]
    removed = {word.replace("$(VENV)", ".venv").rstrip("/") for word in recipe.split()[2:]}
    assert {name.rstrip("/").removesuffix("*") for name in made} <= removed


def test_make_gpu_needs_no_more_than_its_dependency_group():
    """Its plug-ins alone: an unknown mark or setting would be an error."""
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
    command = [sys.executable, "-m", "pytest", *plugins, "-m", "gpu", "--collect-only", "tests/gpu"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_real_training" in done.stdout
