"""Does the documentation site build without a warning, and does it hold every public name?"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import worker_client
from worker_client import inprocess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs-site` does: each warning is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", "-c", "docs/site", "docs", str(place)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return place


def _public(module: ModuleType) -> Iterator[str]:
    """What a module of the in-process restart defines for users, by its page's anchor."""
    for name, value in vars(module).items():
        is_ours = getattr(value, "__module__", "") == module.__name__
        if not name.startswith("_") and is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
            yield f"{module.__name__}.{name}"


@pytest.mark.timeout(400)
def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    anchors = set(re.findall(r'id="([\w.]+)"', (site / "reference" / "python.html").read_text()))
    wanted = {f"worker_client.{name}" for name in worker_client.__all__}
    for name in inprocess.__all__:
        value = getattr(inprocess, name)
        wanted |= set(_public(value)) if isinstance(value, ModuleType) else set()
    wanted |= {"worker_client.inprocess.Wrapper", "worker_client.inprocess.CallWrapper"}
    wanted -= {"worker_client.inprocess.wrap.Wrapper"}  # shown as inprocess.Wrapper
    assert not wanted - anchors


def test_every_command_and_page_is_reachable_and_searchable(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in ("tutorial/first-run", "reference/commands", "reference/events", "troubleshooting", "slurm"):
        assert f'href="{page}.html"' in index
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="holdfast-run"' in commands
    assert "hang_explain" in (site / "searchindex.js").read_text()
    assert (site / "search.html").exists()
