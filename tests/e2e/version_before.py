"""Where is the previous version of Holdfast: a wheel of an earlier commit, in its own environment?"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Until there is a release, this commit stands for it: the first with tags of kept records and TLS by the token.
COMMIT = "7f6cb27bad701e24748f3318988a83c21ea6c106"
# It wrote the modules and classes of the records that it kept. Nothing goes back to it.
BEFORE_TAGS = "f394846f7641a2b9df64c3190ec40deae21ffe3a"
LIMIT_S = 200.0


def release() -> str:
    """Returns the newest tag of a version before this commit, else COMMIT."""
    tagged = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    return tagged.stdout.decode().strip() if tagged.returncode == 0 else COMMIT


def installed(folder: Path, version: str = "") -> Path:
    """Returns the interpreter of an environment of that version with this one's libraries. Skips if there is none.

    `version`: a commit; "": `release()`.
    """
    version = version or release()
    if _git("cat-file", "-e", f"{version}^{{commit}}").returncode:
        pytest.skip(f"NOT TESTED against the version before: this clone has no {version[:12]}; git fetch --unshallow")
    (folder / "sources").mkdir()
    subprocess.run(
        ["tar", "-xC", folder / "sources"], input=_git("archive", version).stdout, check=True, timeout=LIMIT_S
    )
    has_builder = importlib.util.find_spec("hatchling") is not None
    isolation = ["--no-build-isolation"] if has_builder else []
    _pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(folder), str(folder / "sources"))
    (wheel,) = folder.glob("holdfast*.whl")
    place = folder / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    _pip("--python", str(place / "bin/python"), "install", "--no-deps", str(wheel))
    (packages,) = place.glob("lib/python*/site-packages")
    # After its own packages. Its path does not find an editable install of this version, which is a .pth file.
    (packages / "rest.pth").write_text(sysconfig.get_paths()["purelib"])
    python = place / "bin/python"
    where = "import supervisor, worker_client, holdfast_wire; print(supervisor.__file__, worker_client.__file__)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, cwd=folder, check=True, timeout=60)
    assert all(each.startswith(str(place)) for each in found.stdout.split()), found.stdout
    return python


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
