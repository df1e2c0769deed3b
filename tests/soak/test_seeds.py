"""What was played is counted once, and a range that goes on with the same core is one row."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from tests.soak import seeds
from tests.soak.seeds import MIXES, Row


def test_a_range_that_goes_on_with_the_same_core_lengthens_its_row_and_any_other_is_a_new_one():
    rows = seeds.joined([], Row("plain", 0, 100, "one", "7"))
    rows = seeds.joined(rows, Row("plain", 100, 50, "one", "120 130"))
    assert rows == [Row("plain", 0, 150, "one", "7 120 130")]
    others = Row("plain", 150, 50, "two", ""), Row("leaving", 150, 50, "one", ""), Row("plain", 160, 1, "one", "")
    for other in others:
        assert seeds.joined(rows, other) == [*rows, other]


def test_what_is_written_is_read_again(tmp_path: Path):
    rows = [Row("plain", 0, 150, "one", "7 120"), Row("lost-data", 150, 50, "two", "")]
    seeds.write(tmp_path / "seeds.csv", rows)
    assert seeds.read(tmp_path / "seeds.csv") == rows


def test_no_seed_of_the_ledger_is_counted_twice_and_those_that_failed_are_of_their_range():
    rows = seeds.read(seeds.LEDGER)
    assert {each.mix for each in rows} <= MIXES.keys()
    played: dict[str, list[range]] = {mix: [] for mix in MIXES}
    for each in rows:
        those = range(each.first, each.first + each.seeds)
        assert all(int(failed) in those for failed in each.failed.split())
        assert not any(those.start < other.stop and other.start < those.stop for other in played[each.mix])
        played[each.mix].append(those)


def test_seeds_of_a_core_that_is_not_committed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "supervisor/core").mkdir(parents=True)
    (tmp_path / "supervisor/core/new.py").touch()
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    wrong = seeds.main(argparse.Namespace(seconds=60.0, processes=1, mix="plain"))
    assert wrong[0].startswith("cannot count seeds: what they play is not committed; commit it first:")
    assert "supervisor/core/" in wrong[0]
