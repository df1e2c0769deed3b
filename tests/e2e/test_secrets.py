"""Does a secret of a job leave it: by command lines, journal, hooks, logs, status, report? Real jobs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.launch import Launch, launched, processes_with, wait_until
from tests.programs.attribution.played import played

pytestmark = pytest.mark.timeout(120)

MARKED = "n4m3dS3cretOfThisJob"  # always behind a name, or in a URL
KNOWN = "s0meV4lueOfTheEnvironment"  # quoted bare by an exception; its variable says what it is
POSTED = "p4thOfTheExport"
RANK_LOGS = ("stdout.log", "stderr.log", "cycle.log")  # the script's own words, which stay as it has printed them

FAILING = f"""
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
    raise RuntimeError("401 for https://me:{MARKED}@host/x?token={MARKED}: " + os.environ["HUB_TOKEN"]
        + " was refused, {{'Authorization': 'Bearer {MARKED}'}}, --api-key {MARKED}")
while not os.path.exists("end"):
    time.sleep(0.05)
"""


def told_everywhere(launch: Launch) -> Iterator[tuple[str, str]]:
    """Yields the name of each way out and what went there."""
    for path in launch.state_dir.rglob("*"):
        if path.is_file() and path.name not in RANK_LOGS:
            yield str(path), path.read_bytes().decode(errors="replace")
    yield "stderr", "\n".join(line for line in launch.stderr_text().splitlines() if line.startswith("holdfast"))
    for command in (("events", "-o", "jsonl"), ("status", "-o", "json"), ("status",)):
        name, *options = command
        yield " ".join(command), launch.holdfast(name, launch.job_id, *options, check=False).stdout
    yield "hook", (launch.folder / "hooks").read_text()


def command_lines(launch: Launch) -> str:
    """Returns those of all processes of the job but its launcher's, whose words its user has chosen."""
    found: list[str] = []
    for pid in processes_with(launch.cookie):
        if pid != launch.process.pid:
            with contextlib.suppress(OSError):
                found.append(Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return "\n".join(found)


def test_no_secret_leaves_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILING)
    with (
        played() as listener,
        launched(
            tmp_path, "--max-restarts", "1", "--on-event", f"cat >> {tmp_path}/hooks; echo >> {tmp_path}/hooks",
            "--ft-per-cycle-applog-prefix", str(tmp_path / "applog/train.log"),
            "--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-model", "none",
            "--ft-attribution-export-url", f"{listener.url}/{POSTED}",
            "train.py", "--hf-token", MARKED, "--header", f"Authorization: Bearer {MARKED}", "--auth", MARKED,
            "--config", json.dumps({"api_key": MARKED}), f"PGPASSWORD={MARKED}",
            environment={"HUB_TOKEN": KNOWN},
        ) as launch,
    ):  # fmt: skip
        wait_until(lambda: listener.heard, timeout_s=60, what="the export of the first cycle's end")
        assert "--export-url" not in command_lines(launch)
        assert POSTED not in command_lines(launch)
        live = list(told_everywhere(launch))
        (tmp_path / "end").touch()
        assert launch.wait() == 0, launch.explained()
        page = tmp_path / "page.html"
        launch.holdfast("report", launch.job_id, "-o", str(page))
        for where, text in (*live, *told_everywhere(launch), ("report", page.read_text())):
            assert MARKED not in text, where
            assert POSTED not in text, where
            assert KNOWN not in text, where
        (fault,) = (event for event in launch.events() if event["kind"] == "worker_failed")
        assert "401 for https://me:***@host/x?token=***: *** was refused" in str(fault["reason"])


def test_the_last_words_of_a_failed_rank_quote_no_secret_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILING.replace('== "0" and', '!= "" and'))
    with launched(tmp_path, "--max-restarts", "0", "train.py", environment={"HUB_TOKEN": KNOWN}) as launch:
        assert launch.wait() == 1
        told = [line for line in launch.stderr_text().splitlines() if line.startswith("holdfast")]
        assert any("last lines of rank 0" in line for line in told)
        assert any("*** was refused" in line for line in told)
        assert KNOWN not in "\n".join(told)
        assert MARKED not in "\n".join(told)
        (log,) = launch.state_dir.rglob("rank_0/stderr.log")
        assert KNOWN in log.read_text()  # the script's own words
