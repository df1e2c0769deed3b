"""Scripts written for torchrun, unchanged: they see, print and leave the same as under torchrun."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import SCRIPTS, assert_nothing_left, launched
from tests.e2e.torchrun import outcome, torchrun

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

# What also differs between two runs of torchrun, or names the launcher's own folder.
EACH_ITS_OWN = {
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
    "HOLDFAST_TEST_COOKIE", "TRACE", "PWD", "OLDPWD",
}  # fmt: skip
ADDED = ("HOLDFAST_", "FT_", "NVRX_", "XDG_RUNTIME_DIR")


def seen_environment(folder: Path, rank: int) -> dict[str, str]:
    seen = json.loads((folder / f"env.{rank}.json").read_text())
    return {name: value for name, value in seen.items() if name not in EACH_ITS_OWN}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_ddp_training_with_loaders_and_children_is_the_same(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    given = tmp_path / "stdin"
    given.write_text("two\nlines\n")
    flags = ("--max-restarts", "9", "--nproc-per-node=x", "-m", "0.5", "--log-dir", ".", "--", "a b", "", "--tee")
    command = ("--nproc-per-node", "2", "--max-restarts", "1", "-m", "trainer.ddp", *flags)
    environment = {"PYTHONPATH": str(SCRIPTS)}
    with given.open() as stdin:
        expected = torchrun(theirs, *command, environment=environment, stdin=stdin.fileno())
    assert expected.code == 0, expected.stderr.decode()
    with given.open() as stdin, launched(ours, *command, environment=environment, stdin=stdin.fileno()) as launch:
        got = outcome(launch)
        assert got.code == 0, got.stderr.decode()
        assert_nothing_left(launch)
    assert got.stdout_lines == expected.stdout_lines
    assert got.stderr_lines == expected.stderr_lines
    assert sum("fork 0." in line or "spawn 0." in line for line in got.stdout_lines) == 4, got.stdout_lines
    for rank in (0, 1):
        seen, wanted = seen_environment(ours, rank), seen_environment(theirs, rank)
        added = {name: seen.pop(name) for name in set(seen) - set(wanted)}
        assert seen == wanted
        assert all(name.startswith(ADDED) for name in added), added


@pytest.mark.timeout(180)
def test_an_error_that_torch_recorded_is_the_root_cause_though_its_rank_exits_last(start: "Start") -> None:
    launch = start("--nproc-per-node", "2", "--workers-stop-timeout", "2", str(SCRIPTS / "recorded.py"))
    assert launch.wait() == 1
    events = launch.events()
    (failed,) = [event for event in events if event["kind"] == "worker_failed" and event["rank"] == 0]
    assert "gloo/transport/tcp" in str(failed["reason"])
    (end,) = [str(event["reason"]) for event in events if event["kind"] == "job_failed"]
    assert "rank 1" in end
    assert "ZeroDivisionError: the batch has no samples" in end
    assert "rank 0" not in end
    assert end in launch.stderr_text()
    assert_nothing_left(launch)


WRAPPERS = {
    "a helper, then exec": '#!/bin/sh\nx=$("PYTHON" -c "print(1)") || exit\nexec "PYTHON" "$@"\n',
    "a helper, then the command, and the end": '#!/bin/sh\nx=$("PYTHON" -c "print(1)") || exit\n"PYTHON" "$@"\n',
    "options and one more argument": '#!/bin/sh\nexec "PYTHON" -X faulthandler "$@" last\n',
    "a Python program": "#!PYTHON\nimport subprocess, sys\n"
    'sys.exit(subprocess.run(["PYTHON", *sys.argv[1:]]).returncode)\n',
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_python_may_be_a_wrapper_that_runs_other_python_programs(start: "Start", tmp_path: Path, wrapper: str) -> None:
    python, script = tmp_path / "python", tmp_path / "train.py"
    python.write_text(wrapper.replace("PYTHON", sys.executable))
    python.chmod(0o755)
    script.write_text("import os, sys; open(f'rank-{os.environ[\"RANK\"]}', 'w').write(repr(sys.argv[1:3]))")
    launch = start("--nproc-per-node", "2", "--python", str(python), str(script), "an ä b", "")
    assert launch.wait() == 0, launch.stderr_text()
    assert [(launch.folder / f"rank-{rank}").read_text() for rank in (0, 1)] == ["['an ä b', '']"] * 2
    assert_nothing_left(launch)
