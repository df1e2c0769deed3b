"""A job checks its storage before each cycle: a broken path keeps a node out, a hanging one delays nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.storage_verdict import PATH_DEADLINE_S
from tests.e2e.hangs import BUSY_S, at_unix_s
from tests.e2e.launch import Launch, assert_nothing_left
from tests.soak.places import Unanswering, served_alone

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

FAILS_ONCE = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    {first}
    sys.exit(3)
"""


@pytest.fixture
def silent(tmp_path: Path) -> Generator[Unanswering]:
    with served_alone(tmp_path / "silent") as files:
        if files is None:
            pytest.skip("needs root, mount namespaces and /dev/fuse")
        yield files


def script(tmp_path: Path, first: str = "pass") -> str:
    path = tmp_path / "job.py"
    path.write_text(FAILS_ONCE.format(first=first))
    return str(path)


def events(launch: Launch, kind: str) -> list[dict[str, Any]]:
    return [event for event in launch.events() if event["kind"] == kind]


def test_storage_is_looked_at_before_each_cycle_and_what_it_answers_is_seen(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x" * 10_000)
    launch = start(
        "--max-restarts", "1", "--ft-storage-health-check-path", f"{tmp_path},{tmp_path}/data",
        "--ft-enable-dist-storage-healthcheck", "true", script(tmp_path),
    )  # fmt: skip
    assert launch.wait() == 0, launch.stderr_text()
    first, second = events(launch, "node_checked")
    for checked in (first, second):
        assert checked["details"][f"storage {tmp_path}"].startswith("healthy in 0.")
        assert checked["details"][f"storage {tmp_path}/data"].startswith("healthy in 0.")
    (job,) = json.loads(launch.holdfast("status", launch.job_id, "-o", "json").stdout)["jobs"]
    shown = {each["subject"]: each for each in job["nodes"][0]["checks"]}
    assert shown[str(tmp_path)]["verdict"] == "healthy"
    assert 0 < shown[str(tmp_path)]["took_s"] < 5
    text = launch.holdfast("status", launch.job_id).stdout
    assert f"storage {tmp_path}/data" in text
    assert_nothing_left(launch)


def test_storage_that_breaks_keeps_the_node_out_of_the_next_cycle(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    launch = start(
        "--max-restarts", "3", "--ft-storage-health-check-path", str(data), script(tmp_path, f"os.rmdir({str(data)!r})")
    )
    assert launch.wait() == 1
    assert f"is unhealthy: {data} can't be read: No such file or directory" in launch.stderr_text()
    assert launch.kinds().count("cycle_started") == 1
    assert_nothing_left(launch)


def test_e8_storage_that_never_answers_holds_up_neither_the_cycles_nor_the_end(
    start: Start, tmp_path: Path, silent: Unanswering
) -> None:
    silent.swallow()
    launch = start("--max-restarts", "1", "--ft-storage-health-check-path", str(silent.folder), script(tmp_path))
    assert launch.wait() == 0, launch.stderr_text()
    ended_s = time.time()
    assert f"has no answer, which excludes no node: {silent.folder} has not answered for" in launch.stderr_text()
    first, second = events(launch, "node_checked")
    assert "unanswered" in first["reason"]
    assert "unanswered" in second["reason"]

    def at_s(kind: str, number: int = 0) -> float:
        return at_unix_s(events(launch, kind)[number])

    assert at_s("cycle_started") - at_s("job_submitted") < PATH_DEADLINE_S - 1
    assert at_s("cycle_started", 1) - at_s("worker_failed") < BUSY_S
    assert ended_s - at_s("job_succeeded") < BUSY_S
    assert len(launch.leftovers()) <= 1, "one look, that even SIGKILL does not end"
    silent.close()
    assert_nothing_left(launch)


def test_e8_a_strict_job_leaves_a_node_whose_storage_never_answers(
    start: Start, tmp_path: Path, silent: Unanswering
) -> None:
    silent.fail()
    launch = start(
        "--max-restarts", "1", "--ft-storage-health-check-path", str(silent.folder),
        "--ft-node-health-check-policy", "strict", script(tmp_path),
    )  # fmt: skip
    assert launch.wait() == 1
    assert f"is unhealthy: {silent.folder} has not answered for 5.0 s" in launch.stderr_text()
    assert "cycle_started" not in launch.kinds()
    assert_nothing_left(launch)
