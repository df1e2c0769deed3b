"""Do scripts in other people's styles, killed and stopped at random, end like undisturbed ones?"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.e2e.launch import assert_nothing_left
from tests.e2e.others import ALL, Script, results, running, strike

STRIKES_MAX = 4


def main(arguments: argparse.Namespace) -> list[str]:
    """Returns failures, each with the seed that repeats it."""
    seed: int = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    scripts = [script for script in ALL.values() if not script.needs or find_spec(script.needs)]
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        expected = {script.name: _undisturbed(script, Path(name)) for script in scripts}
        end_s = time.monotonic() + arguments.seconds
        rounds = 0
        while time.monotonic() < end_s or not rounds:
            dice = random.Random(seed)
            script = dice.choice(scripts)
            try:
                got = _disturbed(script, Path(name) / f"round-{rounds}", dice)
            except AssertionError as error:
                wrong.append(f"seed {seed}, {script.name}: {error}")
            else:
                if got != expected[script.name]:
                    wrong.append(f"seed {seed}, {script.name}: {got} instead of {expected[script.name]}")
            seed, rounds = seed + 1, rounds + 1
        print(f"{rounds} jobs of {len(scripts)} scripts")
    return wrong


def _undisturbed(script: Script, folder: Path) -> dict[str, str]:
    with running(script, folder / f"undisturbed-{script.name}") as launch:
        return results(launch)


def _disturbed(script: Script, folder: Path, dice: random.Random) -> dict[str, str]:
    signals = [signal.SIGKILL, signal.SIGSTOP] if script.may_be_stopped else [signal.SIGKILL]
    with running(script, folder) as launch:
        for _ in range(dice.randint(1, STRIKES_MAX)):
            try:
                strike(launch, script, dice, dice.choice(signals))
            except AssertionError:
                if launch.process.poll() != 0:
                    raise
                break  # it ended before the awaited step
        found = results(launch)
        assert_nothing_left(launch)
        return found
