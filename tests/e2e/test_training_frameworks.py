"""Lightning and transformers under `holdfast run`: a killed and a stopped rank change nothing in the result.

Both train with their own checkpoints and our callback, and are compared with the same script under torchrun.
"""

import json
import os
import random
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import SCRIPTS, assert_nothing_left
from tests.e2e.torchrun import Outcome, outcome, torchrun

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

FLAGS = (
    "--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "6",
    "--ft-rank-section-timeouts", "setup:60,step:6,checkpointing:60", "--ft-rank-out-of-section-timeout", "60",
)  # fmt: skip

DICE = random.Random(os.environ.get("HOLDFAST_TEST_SEED"))  # a failure shows the seed's values

pytestmark = pytest.mark.timeout(300)


def pieces(output: Outcome) -> list[str]:
    """Returns what the ranks printed, in pieces; two ranks may write to one line."""
    return [piece.strip() for piece in re.split(r"(?=rank \d)|\n", output.stdout.decode()) if piece.startswith("rank")]


def harmed_and_unharmed(
    start: "Start", tmp_path: Path, script: str, *, kill_at: int, stop_at: int
) -> tuple[Outcome, Outcome, dict[str, object]]:
    """Returns (our outcome, torchrun's, what the callback learned)."""
    print(f"kill at {kill_at}, stop at {stop_at}")
    framework = script.partition("_")[0]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed; install the dependency group e2e")
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    arguments = (str(SCRIPTS / script), "checkpoints")
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "4", *FLAGS, *arguments, "--monitored",
        environment=environment | {"KILL_AT_STEP": str(kill_at), "STOP_AT_STEP": str(stop_at)},
    )  # fmt: skip
    got = outcome(launch)
    assert got.code == 0, launch.stderr_text()
    events = launch.events()
    assert next(event["rank"] for event in events if event["kind"] == "worker_failed") == 1
    assert any(event["kind"] == "hang_detected" for event in events)
    assert any(event["kind"] == "limits_calculated" for event in events)
    assert b"the supervisor cannot be reached" not in got.stderr
    assert_nothing_left(launch)
    learned = json.loads((launch.folder / "checkpoints" / "_ft_state_.json").read_text())
    expected = torchrun(tmp_path, "--nproc-per-node", "2", *arguments, environment=environment)
    assert expected.code == 0, expected.stderr.decode()
    return got, expected, learned


@pytest.mark.soak
def test_lightning(start: "Start", tmp_path: Path) -> None:
    kill_at = DICE.randint(5, 12)  # of 16 steps, with a checkpoint every fourth
    got, expected, learned = harmed_and_unharmed(
        start, tmp_path, "lightning_training.py", kill_at=kill_at, stop_at=DICE.randint(kill_at, 15)
    )
    assert len(pieces(expected)) == 2 * (4 + 1)
    # No epoch is repeated or skipped, so the output is the same.
    assert sorted(pieces(got)) == sorted(pieces(expected))
    assert "rank 1 done in TorchElasticEnvironment" in pieces(got)
    assert b"Restored all states from the checkpoint" in got.stderr
    assert learned


@pytest.mark.soak
def test_transformers(start: "Start", tmp_path: Path) -> None:
    kill_at, stop_at = DICE.choice((5, 6, 7)), DICE.choice((9, 10, 11))  # of 12; 4 and 8 are saved, sometimes late
    got, expected, learned = harmed_and_unharmed(
        start, tmp_path, "transformers_training.py", kill_at=kill_at, stop_at=stop_at
    )
    assert "rank 1 of 2 ParallelMode.DISTRIBUTED from 8" in pieces(got)
    results = [piece for piece in pieces(expected) if "losses" in piece]
    assert len(results) == 2
    assert sorted(piece for piece in pieces(got) if "losses" in piece) == sorted(results)
    assert learned


@pytest.mark.soak
def test_transformers_goes_on_from_the_checkpoint_whose_name_was_committed(start: "Start") -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed; install the dependency group e2e")
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "1",
        str(SCRIPTS / "transformers_training.py"), "checkpoints", "--latest",
        environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "KILL_AT_STEP": "10"},
    )  # fmt: skip
    got = outcome(launch)
    assert got.code == 0, launch.stderr_text()
    assert "rank 1 of 2 ParallelMode.DISTRIBUTED from 8" in pieces(got)
    place = launch.folder / "checkpoints"
    named = Path((place / "latest").read_text())
    assert named.name == "checkpoint-12"
    groups = [each.name for each in place.iterdir() if each.is_dir()]
    assert len(groups) == 2, "each group of ranks has a folder of its own"
    assert named.parent.name == max(groups, key=int)
