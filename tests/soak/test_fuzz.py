"""Does every reader of what a stranger may write survive, and does the fuzz see a reader that does not?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import fuzz
from tests.soak.fuzz import Target
from tests.soak.fuzz_targets import targets

INPUTS = int(os.environ.get("HOLDFAST_FUZZ_INPUTS", "10000"))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))


@pytest.mark.filterwarnings("ignore")
def test_each_record_of_a_stranger_is_read_or_refused_as_documented(tmp_path: Path):
    outcomes, wrong = fuzz.all_played(targets(tmp_path), INPUTS, SEED)
    assert not wrong
    refused = {each.target.name for each in outcomes if each.refused}
    assert refused >= {each.target.name for each in outcomes if each.target.errors} - {
        "YAML of jobs",
        "YAML of healthd",
    }


def _stalls(data: bytes) -> None:
    if len(data) != 3:
        time.sleep(60)


def _burns(data: bytes) -> None:
    until_s = time.process_time() + 0.2
    while len(data) != 3 and time.process_time() < until_s:
        pass


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (bytes.decode, "UnicodeDecodeError"),
        ({b"abc": 1}.__getitem__, "KeyError"),
        (_stalls, "StalledError"),
        (_burns, "took "),
    ],
)
def test_a_reader_that_raises_or_stalls_is_found(
    read: Callable[[bytes], object], told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fuzz, "STALL_S", 1.0)
    monkeypatch.setattr(fuzz, "READ_S", 0.1)
    _, wrong = fuzz.all_played([Target("a reader", [b"abc"], read)], 200, 1)
    assert any(told in each for each in wrong)


def test_the_same_seed_gives_the_same_inputs():
    def inputs(seed: int) -> list[bytes]:
        found: list[bytes] = []
        fuzz.all_played([Target("a reader", [b'{"a": [1, 2]}'], found.append)], 300, seed)
        return found

    assert inputs(1) == inputs(1) != inputs(2)
