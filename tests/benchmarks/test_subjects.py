"""Does `holdfast run` take the job id of each workload?"""

from __future__ import annotations

import os

from supervisor.config.job_spec import JobSpec
from tests.benchmarks.subjects import WORKLOADS, job_id
from tests.e2e.fault_rounds import SCRIPT


def test_a_workload_in_another_folder_has_a_job_id_that_is_allowed() -> None:
    elsewhere = job_id(os.path.relpath(SCRIPT.with_suffix(""), WORKLOADS))
    assert JobSpec(elsewhere, ("t.py",)).job_id.endswith(f"-{SCRIPT.stem}")
