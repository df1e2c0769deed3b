"""A node proves before each cycle that it is fit: a job with a real health service beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launch import assert_nothing_left, wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(90)

CHECK = """#!/bin/sh
echo "$1" >> {folder}/asked
cat {folder}/says
"""
FAILS_ONCE = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    {first}
    sys.exit(3)
"""
WELL = '{"fail_count": 0}'
ILL = '{"fail_count": 2, "failed_checks": ["gpu", "nic"]}'


@pytest.fixture
def service(tmp_path: Path) -> Generator[Path]:
    """Yields the folder of a running service; its file `says` has the result of its check."""
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "says").write_text(WELL)
    (folder / "asked").touch()
    check, config, socket = folder / "check.sh", folder / "nvhcd.yaml", folder / "nvhcd.sock"
    check.write_text(CHECK.format(folder=folder))
    check.chmod(0o755)
    config.write_text(f"healthcheck_path: {check}\nsocket_path: {socket}\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(socket.exists, timeout_s=20, what="the health service")
        yield folder
        process.terminate()


def script(tmp_path: Path, first: str = "pass") -> str:
    path = tmp_path / "job.py"
    path.write_text(FAILS_ONCE.format(first=first))
    return str(path)


def test_a_healthy_node_is_asked_before_each_cycle(start: Start, tmp_path: Path, service: Path) -> None:
    endpoint = f"unix://{service}/nvhcd.sock"
    launch = start("--max-restarts", "1", "--ft-node-health-check-endpoint", endpoint, script(tmp_path))
    assert launch.wait() == 0, launch.stderr_text()
    assert (service / "asked").read_text().split() == ["--no-slurm"] * 2
    assert launch.kinds().count("node_checked") == 2
    assert "health" not in launch.stderr_text()
    assert_nothing_left(launch)


def test_a_node_that_falls_ill_takes_no_further_part(start: Start, tmp_path: Path, service: Path) -> None:
    falls_ill = f"open({str(service / 'says')!r}, 'w').write({ILL!r})"
    launch = start(
        "--max-restarts", "3", "--ft-node-health-check-endpoint", str(service / "nvhcd.sock"),
        script(tmp_path, falls_ill),
    )  # fmt: skip
    assert launch.wait() == 1
    said = launch.stderr_text()
    assert "is unhealthy: nvhcd counts 2 failed checks (gpu, nic)" in said
    assert launch.kinds().count("cycle_started") == 1
    assert_nothing_left(launch)


def test_without_a_service_the_check_is_skipped_unless_the_policy_is_strict(start: Start, tmp_path: Path) -> None:
    nowhere = ("--max-restarts", "1", "--ft-node-health-check-endpoint", str(tmp_path / "nowhere.sock"))
    launch = start(*nowhere, script(tmp_path))
    assert launch.wait() == 0
    assert launch.stderr_text().count("is skipped: nvhcd can't be asked: there is no socket") == 1
    strict = start(*nowhere, "--ft-node-health-check-policy", "strict", script(tmp_path))
    assert strict.wait() == 1
    assert "is unhealthy: nvhcd can't be asked: there is no socket" in strict.stderr_text()
