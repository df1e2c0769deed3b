from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a script into a folder of its own and gives its path."""

    def write(source: str, name: str = "job/train.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return str(path)

    return write
