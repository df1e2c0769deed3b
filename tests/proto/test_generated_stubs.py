"""Are the committed stubs the output of proto/generate.sh for the .proto files?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[2] / "proto"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-tests" / "proto-tools-1.49.1"


def _tools() -> str:
    """Returns an interpreter with the pinned protoc, made once per user."""
    python = CACHE / "bin" / "python"
    if not (CACHE / "complete").exists():
        if sys.version_info >= (3, 12):
            pytest.skip("grpcio-tools 1.49.1 has no wheels for this Python")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(CACHE)], check=True, timeout=60)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "grpcio-tools==1.49.1", "setuptools<80"], check=True, timeout=110)
        (CACHE / "complete").touch()
    return str(python)


def test_regenerating_changes_nothing(tmp_path: Path):
    environment = os.environ | {"PROTO_TOOLS_PYTHON": _tools()}
    subprocess.run([str(PROTO / "generate.sh"), str(tmp_path)], check=True, env=environment, timeout=60)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert made == sorted(path.relative_to(PROTO) for path in PROTO.rglob("*_pb2*") if "__pycache__" not in path.parts)
    for path in made:
        assert (tmp_path / path).read_bytes() == (PROTO / path).read_bytes(), f"{path}: run proto/generate.sh"
