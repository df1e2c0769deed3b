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
        ((), "the number of nodes is not given; give --nodes N or --from-report F.json"),
        (("--from-report", "/nowhere.json"), "cannot read /nowhere.json: No such file or directory; give the file"),
        (("--nodes", "0"), "cannot simulate: 0 nodes"),
        (("--nodes", "x"), "'x' is not a whole number"),
        (("--nodes", "4", "--mtbf", "3"), "'3' is not a duration; write numbers with units"),
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


# --- from a real job's report


def _report(**changes: object) -> dict[str, object]:
    """A report on two nodes of four ranks that ran for 1,000 hours, as far as it is read."""
    incidents = [
        {"kind": "lost node", "outcome": "restarted"},
        {"kind": "hang", "outcome": "restarted"},
        {"kind": "failed process", "outcome": "restarted"},
        {"kind": "exception", "outcome": "restarted inside the processes"},
        {"kind": "requested", "outcome": "restarted"},
        {"kind": "failed process", "outcome": "tolerated"},
    ]
    cycles: list[dict[str, object]] = [
        {"nodes": ["n0", "n1", "n2"], "ranks": 12},
        {"nodes": ["n0", "n1"], "ranks": 8},
        {"nodes": [], "ranks": 0},
    ]
    return {
        "schema": "holdfast.report/v1", "cycles": cycles, "incidents": incidents, "spent_s": {"running": 3_600_000.0},
        "max_restarts": 1000, "checkpoints": {"pause_s": 4.0, "interval_s": 596.0, "section": "checkpointing"},
    } | changes  # fmt: skip


def _asked(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert main(("simulate", "--from-report", str(path), "--runs", "1", "-o", "json", *more)) == 0
    return json.loads(capsys.readouterr().out)["question"]


def test_a_real_jobs_history_says_how_its_nodes_fail_and_options_replace_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(_report()))
    asked = _asked(path, capsys)
    found = {name: asked[name] for name in ("nodes", "ranks_per_node", "mtbf_s", "lost_share", "hang_share")}
    assert found == {"nodes": 2, "ranks_per_node": 4, "mtbf_s": 1_800_000.0, "lost_share": 0.25, "hang_share": 0.25}
    assert (asked["checkpoint_interval_s"], asked["checkpoint_pause_s"], asked["max_restarts"]) == (596.0, 4.0, 1000)
    asked = _asked(path, capsys, "--nodes", "3", "--checkpoint-every", "5m")
    assert (asked["nodes"], asked["checkpoint_interval_s"], asked["checkpoint_pause_s"]) == (3, 300.0, 4.0)


def test_what_a_report_does_not_show_keeps_its_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(_report(incidents=[], checkpoints=None)))
    asked = _asked(path, capsys)
    assert (asked["mtbf_s"], asked["checkpoint_interval_s"]) == (250 * 86_400.0, 1800.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "it is not such a report"),
        (json.dumps(_report(schema="other/v1")), "its schema is 'other/v1', not 'holdfast.report/v1'"),
        (json.dumps(_report(cycles=[])), "its job has not started any rank; write it by holdfast report"),
    ],
)
def test_another_file_is_refused(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "job.json"
    path.write_text(text)
    assert main(("simulate", "--from-report", str(path))) == 2
    assert f"cannot take a job's history from {path}" in (error := capsys.readouterr().err)
    assert told in error
