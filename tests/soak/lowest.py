"""Does the suite pass with the lowest versions that pyproject.toml allows? It makes an environment for that."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.deploy.sources import ROOT

BOUND = re.compile(r"([\w.-]+)>=([\w.]+)")
EXTRAS = ("supervisor", "top", "otel")


def constraints() -> list[str]:
    """Returns the dependencies of a user's installation at their lowest versions, as pip reads them.

    The tests' own tools want a newer protobuf than the lowest: `packages` runs a job beside old ones.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    return [f"{found[1]}=={found[2]}" for each in wanted if (found := BOUND.fullmatch(each))]


def main(arguments: argparse.Namespace) -> list[str]:
    """Returns what has failed."""
    (ROOT / "build").mkdir(exist_ok=True)  # not below /tmp, which some tests replace
    with tempfile.TemporaryDirectory(prefix="lowest-", dir=ROOT / "build") as name:
        place, lowest = Path(name, "environment"), Path(name, "lowest.txt")
        lowest.write_text("\n".join(constraints()) + "\n")
        python = str(place / "bin/python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--prefer-binary"]
        os.chmod(name, 0o755)  # some tests play another user
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run(
            [*pip, "-c", str(lowest), "-r", str(lowest), *_tools(), _torch(), "numpy", *arguments.also], check=True
        )
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
        code = _tried([python, "-m", "pytest"], arguments.tests)
    return [f"the suite with {', '.join(constraints())}: exit code {code}"] if code else []


def _tried(pytest: Sequence[str], tests: Sequence[str]) -> int:
    """Runs the tests side by side, and failed ones twice more, as CI does. Returns pytest's exit code."""
    beside = str((3 * (os.cpu_count() or 1) + 1) // 2)
    with tempfile.TemporaryDirectory(prefix="hf-") as short:  # names of sockets are limited
        os.chmod(short, 0o755)
        how = ("-n", beside, "--dist", "loadfile", "--reruns", "2", "-rfER", f"--basetemp={short}/t")
        command = [*pytest, *how, "-m", "not soak and not alone and not peers", *tests]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


def _torch() -> str:
    """Returns the version of this environment as a requirement: the newest takes gigabytes."""
    return f"torch=={importlib.metadata.version('torch').partition('+')[0]}"


def _tools() -> Iterator[str]:
    """Yields what the tests themselves need: import-linter draws a page, other linters are not among it."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    bound = {each.partition("==")[0] for each in constraints()}
    for each in (*groups["dev"], *groups["docs"]):
        if isinstance(each, str) and not re.match(r"ruff|pyright|types-", each):
            found = BOUND.match(each)
            if found is None or found[1] not in bound:
                yield each
