"""Logs of a whole job: real ranks fail and restart, and their output is in the file of its cycle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from supervisor.programs.attribution.log_file import LogFile
from tests.e2e.launch import Launch

SCRIPT = """
import os, sys, time
cycle, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
print("rank", rank, "in cycle", cycle, os.path.realpath(os.environ["NVRX_CURRENT_CYCLE_INFO"]), flush=True)
os.write(2, b"gr\\xc3")
os.write(2, b"\\xbcn \\xff\\0")
if rank == "1" and cycle < 2:
    while not os.path.exists(f"up{cycle}"):
        time.sleep(0.001)
    raise RuntimeError(f"lost in cycle {cycle}")
if cycle < 2:
    open(f"up{cycle}", "w").close()
    time.sleep(60)
"""


def test_each_cycle_has_its_log_and_its_record(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words, cycles = tmp_path / "logs" / "nvrx.log", tmp_path / "cycles"
    job = Launch(
        [
            "--nproc-per-node", "2", "--max-restarts", "2",
            "--ft-per-cycle-applog-prefix", f"{tmp_path}/logs/train.log",
            "--ft-cycle-info-dir", str(cycles), "--ft-nvrx-logfile", str(words), "train.py",
        ],
        tmp_path,
    )  # fmt: skip
    assert job.wait() == 0, job.errors.read_text()
    assert job.output.read_text() == ""
    for cycle in range(3):
        lines = (tmp_path / "logs" / f"train_cycle{cycle}.log").read_text().splitlines()
        info = cycles / f"cycle_info.{job.job_id}.0.{cycle}"
        for rank in (0, 1):
            assert f"{rank}: rank {rank} in cycle {cycle} {info}" in lines
        assert all(line[:3] in ("0: ", "1: ") for line in lines)
        assert not any(f"in cycle {other}" in line for line in lines for other in {0, 1, 2} - {cycle})
        assert any(line.startswith("0: grün \N{REPLACEMENT CHARACTER}<NUL>") for line in lines)
        record = json.loads(info.read_text())
        assert record["cycle_end_time"] > record["cycle_start_time"] > "2"
        assert (record["active_ranks"], record["cycle_log_file"]) == (
            "0-1", f"{tmp_path}/logs/train_cycle{cycle}.log",
        )  # fmt: skip
    assert "1: RuntimeError: lost in cycle 1" in (tmp_path / "logs" / "train_cycle1.log").read_text()
    assert (cycles / f"cycle_info.{job.job_id}.current").resolve() == cycles / f"cycle_info.{job.job_id}.0.2"
    told = words.read_text()
    assert told.count("RuntimeError: lost in cycle 0") >= 1
    assert f"the output of cycle 2 is complete in {tmp_path}/logs/train_cycle2.log" in told
    shown = subprocess.run(
        [sys.executable, "-m", "supervisor", "logs", job.job_id, "--rank", "1", "--cycle", "1"],
        env=job.env, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert shown.stdout.startswith(f"rank 1 in cycle 1 {cycles}")
    assert shown.stdout.endswith("RuntimeError: lost in cycle 1\n")


def test_a_job_that_runs_again_is_judged_and_shown_by_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nif os.environ['WORDS']:\n  print(os.environ['WORDS'], flush=True)")
    log = tmp_path / "train_cycle0.log"
    options = ["--job-id", "again", "--nproc-per-node", "2", "--ft-per-cycle-applog-prefix", f"{tmp_path}/train.log"]
    for words, kinds in (
        ("OSError: [Errno 28] No space left on device", ["full_disk"]),
        ("loss: nan", ["nan"]),
        ("", []),
    ):
        job = Launch([*options, "train.py"], tmp_path, {"WORDS": words})
        assert job.wait() == 0, job.errors.read_text()
        judged = LogFile(str(log), tail_lines=0)
        judged.read_on(time.monotonic, to_the_end=True)
        assert [each.kind for each in judged.analysis.judgement().findings] == kinds
        shown = subprocess.run(
            [sys.executable, "-m", "supervisor", "logs", "again", "--rank", "0"],
            env=job.env, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert shown.stdout == (f"{words}\n" if words else "")
    assert log.read_text().count("begins here") == 2
