"""Scripts as other people write them are killed and stopped at random, and end like an undisturbed run.

Settings by exec() and `--name=value`. `make soak` adds packages with relative imports and data loaders in processes,
accelerate, sections with the client's state in the checkpoint, and ranks that a script spawns itself, and runs longer.
"""

from __future__ import annotations

import os
import random
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.launch import assert_nothing_left
from tests.e2e.others import ALL, Script, results, running, strike

SEED = os.environ.get("HOLDFAST_TEST_SEED") or str(random.randrange(10**6))

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    "script", [script for script in ALL.values() if not script.is_slow], ids=lambda each: each.name
)
def test_it_ends_as_if_nothing_had_been(script: Script, tmp_path: Path) -> None:
    if script.needs and find_spec(script.needs) is None:
        pytest.skip(f"{script.needs} is not installed; install the dependency group e2e")
    print(f"again with HOLDFAST_TEST_SEED={SEED}")
    dice = random.Random(f"{SEED} {script.name}")
    strikes = [signal.SIGKILL, signal.SIGSTOP] if script.may_be_stopped else [signal.SIGKILL]
    with running(script, tmp_path / "undisturbed") as undisturbed, running(script, tmp_path / "disturbed") as launch:
        for number in strikes:
            strike(launch, script, dice, number)
        got, expected = results(launch), results(undisturbed)
        assert len(expected) == 2, undisturbed.stdout_text()
        assert got == expected, launch.explained()
        assert undisturbed.kinds().count("cycle_started") == 1
        assert launch.kinds().count("cycle_started") > len(strikes), launch.explained()
        assert ("hang_detected" in launch.kinds()) >= script.may_be_stopped, launch.explained()
        assert_nothing_left(launch)
        assert_nothing_left(undisturbed)
