"""Does a worker get what torchrun would give it?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import JobSpec
from supervisor.config.resolve import parse_run
from supervisor.core.facts import Assignment, RestartRules
from supervisor.core.node.worker_environment import worker_environment

OURS = {
    "HOLDFAST_SOCKET", "HOLDFAST_JOB_ID", "HOLDFAST_TOKEN_FILE", "HOLDFAST_CYCLE", "HOLDFAST_FENCING_EPOCH",
    "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET",
}  # fmt: skip
# These differ from run to run, or with the folder.
FREE = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}


def environment(spec: JobSpec, local_rank: int, assignment: Assignment) -> dict[str, str]:
    return worker_environment(
        spec, assignment, local_rank=local_rank, store_host="127.0.0.1", store_port=29777,
        error_file="/logs/error.json", socket_path="/run/holdfast/worker.sock", token_file="/run/token",
    )  # fmt: skip


@pytest.mark.peers
def test_the_same_variables_as_torchrun(tmp_path: Path) -> None:
    """Runs torchrun once, in an empty environment, and compares for each rank."""
    script = tmp_path / "print_env.py"
    script.write_text(
        "import json, os, pathlib\n"
        f"path = pathlib.Path({str(tmp_path)!r}) / ('rank' + os.environ['RANK'])\n"
        "path.write_text(json.dumps(dict(os.environ)))\n"
    )
    base = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = ["--nproc-per-node", "2", "--max-restarts", "3", "--role", "trainer", str(script)]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *argv], env=base, check=True, timeout=100, capture_output=True
    )
    run = parse_run(argv, environ=base, cwd=str(tmp_path))
    for local_rank in range(2):
        theirs: dict[str, str] = json.loads((tmp_path / f"rank{local_rank}").read_text())
        ours = run.environment | environment(run.spec, local_rank, Assignment(cycle=0, world_size=2))
        added_by_python = {"LC_CTYPE", "__KMP_REGISTERED_LIB", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
        expected = {name: value for name, value in theirs.items() if not name.startswith(tuple(added_by_python))}
        assert set(ours) - OURS == set(expected)
        different = {name for name in expected if ours[name] != expected[name]}
        assert different <= FREE


def test_a_later_cycle_on_the_second_of_three_nodes() -> None:
    spec = JobSpec("night-7", ("t.py",), local_world_size=4, run_id="77", restart=RestartRules(max_restarts=5))
    assignment = Assignment(cycle=2, group_rank=1, group_world_size=3, world_size=12, first_rank=4)
    found = environment(spec, 3, assignment)
    assert found == {
        "LOCAL_RANK": "3", "RANK": "7", "GROUP_RANK": "1", "ROLE_RANK": "7", "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "12", "GROUP_WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "12",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "5", "TORCHELASTIC_RUN_ID": "77",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": "/logs/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "HOLDFAST_SOCKET": "/run/holdfast/worker.sock", "HOLDFAST_JOB_ID": "night-7",
        "HOLDFAST_TOKEN_FILE": "/run/token", "HOLDFAST_CYCLE": "2", "HOLDFAST_FENCING_EPOCH": "0",
        "FT_RANK_MONITOR_IPC_SOCKET": "/run/holdfast/worker.sock",
        "FT_LAUNCHER_IPC_SOCKET": "/run/holdfast/worker.sock",
    }  # fmt: skip


def test_rank_0_may_serve_the_store_and_the_job_id_is_the_run_id() -> None:
    found = environment(JobSpec("night-7", ("t.py",), agent_store=False), 0, Assignment(cycle=0))
    assert found["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert found["TORCHELASTIC_RUN_ID"] == "night-7"
