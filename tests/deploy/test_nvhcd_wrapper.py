"""Does the wrapper for Slurm prolog checks work, with a check of our own?"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.config.healthd_file import read_healthd_file

NVHCD = Path(__file__).parents[2] / "deploy" / "nvhcd"


@pytest.mark.parametrize(("code", "fail_count"), [(0, 0), (3, 1)])
def test_the_check_is_run_as_in_a_prolog_and_only_json_is_on_stdout(tmp_path: Path, code: int, fail_count: int) -> None:
    check = tmp_path / "check"
    check.write_text(f'#!/bin/sh\necho "$SLURM_SCRIPT_CONTEXT $SLURM_JOB_ID $1"\nexit {code}\n')
    check.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "BCM_HEALTHCHECK": str(check), "SLURM_JOB_ID": "7"}
    command = [str(NVHCD / "bcm-healthcheck-wrapper.sh"), "--no-slurm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert json.loads(done.stdout)["fail_count"] == fail_count
    assert done.returncode == (1 if code else 0)
    assert done.stderr == "prolog_slurmd 7 --no-slurm\n"


def test_the_example_of_a_configuration_can_be_read() -> None:
    assert read_healthd_file(str(NVHCD / "config.yaml")).timeout_s == 120.0
