"""Does a job start whose arguments together are longer than one variable may be, as under torchrun?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import assert_nothing_left

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

ARGUMENTS = tuple(f"{number:01000d}" for number in range(1_000))  # a megabyte; one variable holds 128 KiB
TOLD = f"{len(ARGUMENTS)} arguments, {sum(map(len, ARGUMENTS))} bytes"
FAILS_ONCE = """
import os, sys
print(len(sys.argv) - 1, "arguments,", sum(map(len, sys.argv[1:])), "bytes", flush=True)
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "long.py"
    path.write_text(FAILS_ONCE)
    return str(path)


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_a_megabyte_of_arguments_reaches_the_script_in_each_cycle(start: Start, script: str, method: str) -> None:
    launch = start("--max-restarts", "1", "--spawn-method", method, script, *ARGUMENTS)
    assert launch.wait() == 0, launch.stderr_text()
    assert launch.stdout_text().splitlines() == [TOLD, TOLD]
    assert_nothing_left(launch)


def test_they_reach_it_through_the_supervisor_of_a_node(tmp_path: Path, script: str) -> None:
    with NodeDaemon(tmp_path / "node") as node:
        words = (sys.executable, "-m", "supervisor", "run", "--socket-dir", str(node.socket_dir), "--max-restarts", "1")
        done = subprocess.run(
            [*words, script, *ARGUMENTS],
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PET_"))},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [TOLD, TOLD]
