"""`holdfast simulate` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli import main

SMALL = ("simulate", "--nodes", "8", "--spares", "1", "--mtbf", "5d", "--runs", "2")


def test_a_table_says_where_the_time_goes(capsys: pytest.CaptureFixture[str]):
    assert main(SMALL) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 runs of 30 days: 8 nodes with 1 spare, a fault per node every 5d00h\n")
    assert "steps that count (goodput)" in told
    assert "spares needed" in told


def test_json_has_the_question_the_runs_and_their_median(capsys: pytest.CaptureFixture[str]):
    assert main((*SMALL, "--seed", "7", "-o", "json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "holdfast.simulation/v1"
    assert document["question"]["nodes"] == 8
    assert [run["seed"] for run in document["runs"]] == [7, 8]
    shares = [value for name, value in document["runs"][0].items() if name.endswith("_share")]
    assert sum(shares) + document["runs"][0]["goodput"] == pytest.approx(1)


def test_a_picture_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "life.svg"
    assert main((*SMALL, "-o", str(file))) == 0
    assert file.read_text().startswith("<svg")
    assert capsys.readouterr().err == f"holdfast: wrote {file}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "the following arguments are required: --nodes"),
        (("--nodes", "0"), "cannot simulate: 0 nodes"),
        (("--nodes", "x"), "'x' is not a whole number"),
        (("--nodes", "4", "--mtbf", "3"), "'3' is not a duration; write a number and a unit"),
        (("--nodes", "4", "--mtbf", "0s"), "--mtbf is less than a second"),
        (("--nodes", "4", "--lost-share", "1.5"), "'1.5' is not a share"),
        (("--nodes", "4", "--lost-share", "80%", "--hang-share", "30%"), "are more than all faults"),
        (("--nodes", "4", "--ranks-per-node", "0"), "a node without ranks"),
        (("--nodes", "4", "--runs", "0"), "0 runs"),
        (("--nodes", "100000", "--mtbf", "1h"), "would take minutes or more; shorten --duration"),
        (("--nodes", "4", "-o", "life.png"), "the output 'life.png' is not known"),
        (("--nodes", "4", "-o", "/nowhere/at/all.svg"), "cannot write /nowhere/at/all.svg: No such file"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(("simulate", *arguments)) == 2
    assert told in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]):
    assert main(("simulate", "--help")) == 0
    assert "holdfast simulate --nodes 1000 --spares 8 -o life.svg" in capsys.readouterr().out
