"""What does an installation of Holdfast leave for torchrun to find? The entry point from the current pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def entry_point(folder: Path) -> Path:
    """Returns a folder for PYTHONPATH: the tests' environment may be older than the entry point."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["torchrun.handlers"].items()]
    metadata = folder / "installed" / "holdfast_of_this_test-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-of-this-test\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torchrun.handlers]\n" + "\n".join(lines) + "\n")
    return metadata.parent
