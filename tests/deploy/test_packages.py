"""Are wheel and sdist the same bytes wherever they are built, complete, and usable in an empty environment?

`python -m tests.soak packages` does more: the whole supervisor on every Python here, and the Debian package.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from supervisor import __version__
from tests.deploy.sources import MANUAL_PAGES, ROOT, copied

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="needs hatchling: pip install --group dist"
)
CODE = ("supervisor", "worker_client", "proto/holdfast_wire", "proto/nvhcd")


def built(sources: Path, to: Path, **environment: str) -> dict[str, bytes]:
    """Returns the files that the build makes, by name."""
    done = subprocess.run(
        [sources / "deploy/build-dist", sys.executable, to],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in sorted(to.iterdir())}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    built(copied(folder / "sources", changed_at_s=1_600_000_001), folder / "built")
    return folder / "built"


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_another_person_at_another_time_builds_the_same_bytes(dist: Path, tmp_path: Path):
    sources = copied(tmp_path / "elsewhere" / "sources", changed_at_s=1_500_000_000)
    again = built(sources, tmp_path / "built", TZ="Asia/Tokyo", LC_ALL="C.UTF-8", PYTHONHASHSEED="7")
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == again
    assert len(again) == 2, "a wheel and an sdist"


def test_the_wheel_has_every_module_and_nothing_else(dist: Path):
    with zipfile.ZipFile(only(dist, "*.whl")) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    own = {
        path.relative_to(ROOT).as_posix().removeprefix("proto/")
        for folder in CODE
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    pages = {f"holdfast_torch-{__version__}.data/data/share/man/man1/{p.name}" for p in (ROOT / MANUAL_PAGES).iterdir()}
    assert pages
    assert names == own | pages | {"holdfast_command.py", "holdfast_torchrun.py"}


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path):
    subprocess.run(["tar", "-xzC", tmp_path, "-f", only(dist, "*.tar.gz")], check=True)
    (unpacked,) = tmp_path.iterdir()
    again = built(unpacked, tmp_path / "built")
    assert again[only(dist, "*.whl").name] == only(dist, "*.whl").read_bytes()


def test_the_wheel_alone_serves_a_training_environment(dist: Path, tmp_path: Path):
    """Without the extra there is only protobuf, and the command says what is missing."""
    place = tmp_path / "empty"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, only(dist, "*.whl")], check=True, timeout=100, capture_output=True)
    there = "import importlib.metadata as m; print(sorted(d.name for d in m.distributions()))"
    listed = subprocess.run([python, "-I", "-c", there], check=True, timeout=30, capture_output=True, text=True)
    assert listed.stdout.strip() == "['holdfast-torch', 'protobuf']"
    imports = "from worker_client import RankMonitorClient, inprocess; RankMonitorClient()"
    subprocess.run([python, "-I", "-c", imports], check=True, timeout=30)
    command = subprocess.run([place / "bin/holdfast", "--version"], capture_output=True, text=True, timeout=30)
    assert command.returncode == 78
    assert "with its extra [supervisor]" in command.stderr
