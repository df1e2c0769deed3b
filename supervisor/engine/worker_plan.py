"""With which environment, output and binding is each worker of a cycle started?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from holdfast_wire.spawner_link import StreamPlan, WorkerPlan

from supervisor.config.job_logs import (
    current_cycle_info,
    cycle_log_path,
    log_sender_socket,
    rank_prefix,
)
from supervisor.config.job_spec import JobSpec
from supervisor.config.numa import numactl_prefix
from supervisor.core.facts import Assignment
from supervisor.core.node.worker_environment import worker_environment
from supervisor.engine.job_record import JobRecord
from supervisor.engine.output_plan import Console, plan_streams, rank_log_dir

ERROR_FILE_NAME = "error.json"


class WorkerPlanner(msgspec.Struct, frozen=True):
    """Plans all local ranks of a cycle. The spawner makes the folders in the plans."""

    console: Console
    worker_socket: str

    def plan(
        self,
        job: JobRecord,
        assignment: Assignment,
        *,
        token_path: Path,
        store_host: str,
        store_port: int,
        local_ranks: tuple[int, ...] | None = None,
        respawn: int = 0,
    ) -> tuple[WorkerPlan, ...]:
        """Returns plans. `local_ranks` None: all. `respawn`: number of the rank's restart in this cycle."""
        spec = job.spec
        plans: list[WorkerPlan] = []
        for local_rank in range(spec.local_world_size) if local_ranks is None else local_ranks:
            rank = assignment.first_rank + local_rank
            folder = rank_log_dir(job.log_dir, assignment.cycle, rank)
            error_file = f"{folder}/{_error_file_name(respawn)}"
            stdout, stderr = plan_streams(
                spec, self.console, log_dir=job.log_dir, cycle=assignment.cycle, local_rank=local_rank, rank=rank
            )
            plans.append(
                WorkerPlan(
                    local_rank=local_rank,
                    rank=rank,
                    env=_cycle_info(job)
                    | worker_environment(
                        spec,
                        assignment,
                        local_rank=local_rank,
                        store_host=store_host,
                        store_port=store_port,
                        error_file=error_file,
                        socket_path=self.worker_socket,
                        token_file=str(token_path),
                    ),
                    stdout=_kept(stdout, respawn),
                    stderr=_kept(stderr, respawn),
                    exec_prefix=numactl_prefix(spec, local_rank),
                    memory_strict=spec.numa_bind_strict,
                    **_cycle_log(spec, assignment, rank, self.worker_socket),
                )._replace(**_bound(job, local_rank))
            )
        return tuple(plans)


def _cycle_info(job: JobRecord) -> dict[str, str]:
    """Returns the variable that tells the script where the record of its cycle is."""
    folder = job.spec.logs.cycle_info_dir
    if not folder:
        return {}
    return {"NVRX_CURRENT_CYCLE_INFO": current_cycle_info(folder, job.cycle_info_stem)}


def _cycle_log(spec: JobSpec, assignment: Assignment, rank: int, worker_socket: str) -> dict[str, Any]:
    if not spec.logs.cycle_prefix:
        return {}
    return {
        "cycle_log": cycle_log_path(spec.logs.cycle_prefix, assignment.cycle),
        "cycle_log_prefix": rank_prefix(rank, assignment.world_size),
        "cycle_log_door": log_sender_socket(worker_socket, spec.job_id) if spec.has_log_server else "",
    }


def _bound(job: JobRecord, local_rank: int) -> dict[str, Any]:
    """Binds a worker to the NUMA node of its GPU; one without a GPU is not bound."""
    place = job.gpu_places[local_rank] if local_rank < len(job.gpu_places) else None
    if place is None or place.numa_node < 0:
        return {}
    strict = job.spec.numa_bind_strict and not place.spans_nodes
    return {"cpus": place.cpus, "memory_node": place.numa_node, "memory_strict": strict}


def _error_file_name(respawn: int) -> str:
    """Returns a name that differs after a restart: the lost process's error is not the new one's."""
    return f"error-respawn{respawn}.json" if respawn else ERROR_FILE_NAME


def _kept(stream: StreamPlan, respawn: int) -> StreamPlan:
    """Keeps the lost process's file: the worker would truncate a file that it opens itself."""
    if not respawn or not stream.direct or not stream.file:
        return stream
    return stream._replace(file=f"{stream.file}.respawn{respawn}")
