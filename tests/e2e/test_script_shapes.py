"""Scripts in the shapes that strangers give them, unchanged: a rank is killed, one is stopped, and nothing is lost.

Each trains on two ranks with gloo and adds up to the same sum. `make soak` compares them with torchrun.
"""

from __future__ import annotations

import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import SCRIPTS, assert_nothing_left
from tests.e2e.torchrun import Outcome, outcome, torchrun

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(400)

SHAPES = SCRIPTS / "shapes"
SUM = "63.0"
ENDS = [f"rank {rank} ends with {SUM}" for rank in range(2)]
TORCHRUN_TRIES = 3


@dataclass(frozen=True)
class Shape:
    script: str
    argument: str = ""
    strike: signal.Signals = signal.SIGKILL
    printed: str = ""  # what a disturbed run prints, too, on either stream
    needs: str = ""
    is_slow: bool = False  # left to `make soak`

    @property
    def command(self) -> tuple[str, ...]:
        return (str(SHAPES / f"{self.script}.py"), *([self.argument] if self.argument else []))


ALL = (
    Shape("fsdp2", is_slow=True),
    Shape("dtensor", is_slow=True),
    Shape("pipeline", is_slow=True),
    Shape("rpc_calls", is_slow=True),
    Shape("spawning_inside", "fork"),
    Shape("spawning_inside", "spawn", is_slow=True),
    Shape("stores", is_slow=True),
    Shape("groups", is_slow=True),
    Shape("compiled", "aot_eager", is_slow=True),
    Shape("compiled", "inductor", needs="g++", is_slow=True),
    Shape("loaders"),
    Shape("signals", printed=" leaves"),
    Shape("threads"),
    Shape("fault_handler", strike=signal.SIGSEGV, printed="Fatal Python error: Segmentation fault"),
    Shape("daemonised", printed="rank 0 finds daemons of earlier attempts: 0"),
    Shape("async_save", "thread", is_slow=True),
    Shape("async_save", "process", is_slow=True),
)
PARAMETERS = [
    pytest.param(
        shape,
        id=f"{shape.script} {shape.argument}".strip().replace(" ", "-"),
        marks=[pytest.mark.soak] if shape.is_slow else [],
    )
    for shape in ALL
]


def environment_of(shape: Shape, folder: Path) -> dict[str, str]:
    if shape.needs and shutil.which(shape.needs) is None:
        pytest.skip(f"{shape.needs} is not installed")
    return {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}


@pytest.mark.parametrize("shape", PARAMETERS)
def test_a_killed_and_a_stopped_rank_cost_a_restart_each_and_change_nothing(
    shape: Shape, start: Start, tmp_path: Path
) -> None:
    """Rank 1 is killed in cycle 0, rank 0 is stopped in cycle 1, and cycle 2 ends, after two restarts."""
    environment = environment_of(shape, tmp_path) | {"STRIKE": str(int(shape.strike))}
    # None of these scripts sends a heartbeat, so the limit concerns only a stopped rank.
    flags = ("--nproc-per-node", "2", "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "2")
    launch = start(*flags, *shape.command, environment=environment)
    assert launch.wait(300) == 0, launch.explained()
    printed = launch.stdout_text() + launch.stderr_text()
    assert sorted(line for line in printed.splitlines() if "ends with" in line) == ENDS, launch.explained()
    assert shape.printed in printed, launch.explained()
    blamed = (
        rf"rank 1 \(pid \d+\) was killed by {shape.strike.name}\b.*restarts used 1 of 2.*"
        r"rank 0 is stopped \(SIGSTOP\).*restarts used 2 of 2"
    )
    says = [line for line in launch.stderr_text().splitlines() if line.startswith("holdfast: ")]
    assert re.search(blamed, "\n".join(says), re.DOTALL), launch.explained()
    assert sum("restarts used" in line for line in says) == 2, launch.explained()
    assert_nothing_left(launch, within_s=30)


@pytest.mark.soak
@pytest.mark.parametrize("shape", PARAMETERS)
def test_undisturbed_it_prints_the_same_as_under_torchrun(shape: Shape, start: Start, tmp_path: Path) -> None:
    environment = environment_of(shape, tmp_path)
    launch = start("--nproc-per-node", "2", *shape.command, environment=environment)
    got = outcome(launch, 200)
    assert got.code == 0, launch.explained()
    assert_nothing_left(launch, within_s=30)
    expected = torchruns(shape, tmp_path, environment)
    assert got.stdout_lines == expected.stdout_lines
    assert {line for line in got.stdout_lines if "ends with" in line} == set(ENDS)


def torchruns(shape: Shape, tmp_path: Path, environment: dict[str, str]) -> Outcome:
    """Returns the outcome of torchrun. It may crash at its end, which is not our fault, so it has several tries."""
    outcomes: list[Outcome] = []
    while len(outcomes) < TORCHRUN_TRIES and not (outcomes and outcomes[-1].code == 0):
        folder = tmp_path / f"torchrun{len(outcomes)}"
        folder.mkdir()
        outcomes.append(torchrun(folder, "--nproc-per-node", "2", *shape.command, environment=environment))
    return outcomes[-1]
