"""Which variables does one worker get?

A worker gets everything that torchrun exports, with torchrun's values, our own variables, and the reference product's
two socket names. They override the job's base environment (config/environment.py), which has OMP_NUM_THREADS and
TORCH_NCCL_ASYNC_ERROR_HANDLING.
"""

from __future__ import annotations

from typing import Protocol

from supervisor.core.facts import Assignment, RestartRules


class ExportedJob(Protocol):
    """What workers learn about their job; JobSpec has these fields."""

    @property
    def job_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def local_world_size(self) -> int: ...
    @property
    def agent_store(self) -> bool: ...
    @property
    def restart(self) -> RestartRules: ...
    @property
    def signals_to_handle(self) -> tuple[str, ...]: ...


def worker_environment(
    job: ExportedJob,
    assignment: Assignment,
    *,
    local_rank: int,
    store_host: str,
    store_port: int,
    error_file: str,
    socket_path: str,
    token_file: str,
) -> dict[str, str]:
    """Returns the variables for worker `local_rank` of this cycle, which override the job's base environment."""
    rank = assignment.first_rank + local_rank
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(rank),  # a job has only one role
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": str(job.local_world_size),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.world_size),
        "MASTER_ADDR": store_host,
        "MASTER_PORT": str(store_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.cycle),
        "TORCHELASTIC_MAX_RESTARTS": str(job.restart.max_restarts),
        "TORCHELASTIC_RUN_ID": job.run_id or job.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(job.agent_store),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(job.signals_to_handle),
        "HOLDFAST_SOCKET": socket_path,
        "HOLDFAST_JOB_ID": job.job_id,
        "HOLDFAST_TOKEN_FILE": token_file,
        "HOLDFAST_CYCLE": str(assignment.cycle),
        "HOLDFAST_FENCING_EPOCH": str(assignment.epoch),
        "FT_RANK_MONITOR_IPC_SOCKET": socket_path,
        "FT_LAUNCHER_IPC_SOCKET": socket_path,
    }
