"""Where is the reference product installed for comparison? In its own virtual environment, made once.

It is used as an installed program only. It is installed without its dependency on a CUDA build of torch, but with the
other dependencies that it names.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.4.1"
TORCH = "torch==2.13.0"
UNDECLARED = ("numpy",)  # without it, its launcher does not start

_READY = ".ready"
_REQUIREMENTS = """
import importlib.metadata as metadata, re
names = metadata.requires("nvidia-resiliency-ext") or []
names = [re.split(r"\\s*;", name)[0] for name in names if "extra" not in name]
print("\\n".join(re.sub("[()]", "", name) for name in names))
"""


class InstallError(Exception):
    """Raised when the reference product can't be installed here; says why."""


@dataclass(frozen=True, slots=True)
class Installed:
    launcher: Path
    python: str
    versions: dict[str, str]


def install(folder: Path, python: str, say: Callable[[str], None]) -> Installed:
    """Returns the environment in `folder`; makes it with `python` if it is missing, which takes minutes."""
    wanted = {"product": VERSION, "torch": TORCH, "interpreter": python}
    stamp = folder / _READY
    launcher = folder / "bin" / "ft_launcher"
    if not stamp.is_file() or json.loads(stamp.read_text()) != wanted:
        say(f"installing the reference product {VERSION} into {folder.name}/ (once; needs about 1 GB)")
        _make(folder, python)
        _run([str(launcher), "--help"], "start its launcher")
        stamp.write_text(json.dumps(wanted))
    inside = folder / "bin" / "python"
    report = _run([str(inside), "-c", "import sys, torch; print(sys.version.split()[0], torch.__version__)"], "ask it")
    python_version, torch_version = report.split()
    return Installed(launcher, str(inside), {"itself": VERSION, "python": python_version, "torch": torch_version})


def _make(folder: Path, python: str) -> None:
    _run([python or sys.executable, "-m", "venv", "--clear", str(folder)], "make a virtual environment")
    inside = str(folder / "bin" / "python")
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    _run([*pip, TORCH, *UNDECLARED], f"install {TORCH}")
    _run([*pip, "--no-deps", f"nvidia-resiliency-ext=={VERSION}"], f"install nvidia-resiliency-ext {VERSION}")
    needs = [line for line in _run([inside, "-c", _REQUIREMENTS], "read its requirements").splitlines() if line]
    _run([*pip, *(need for need in needs if not need.startswith("torch"))], "install what it requires")


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"cannot {what}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
        raise InstallError(f"cannot {what}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
