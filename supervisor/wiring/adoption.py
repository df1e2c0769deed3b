"""How does a private supervisor serve ranks that another launcher has started, on one node or on several?

The wiring is the same as in daemon_services.py, without the part that starts processes: these already run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import state_dir
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.adopted.adopted_ranks import AdoptedRanks
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.engine.output_plan import Console
from supervisor.errors import HoldfastError
from supervisor.ports.edges import Spawners
from supervisor.ports.questions import PeersAndNodeRequests
from supervisor.queries.job_service import JobService
from supervisor.wiring.job_wiring import Base
from supervisor.wiring.supervisor import open_slow_edges, open_supervisor, registered
from supervisor.wiring.supervisor_paths import SupervisorPaths

if TYPE_CHECKING:
    from supervisor.edges.peers.embedded.adopted_peers import NodeMeeting

ADOPTED_IDLE_S = 30.0  # how long a supervisor of adopted ranks waits for the first rank, or for another one


async def serve_adopted(
    spec: JobSpec, home: Path, folder: Path, on_open: Callable[[Path, Path], None], meeting: NodeMeeting | None = None
) -> None:
    """Runs a private supervisor in `folder` for ranks that another launcher starts, until the last of them has ended.

    `home`: where the ranks are recorded for a successor. `on_open` gets the worker socket and the token file of cycle 0
    once ranks can connect. With `meeting`, the supervisor works with those of other nodes; if it loses their leader, it
    leaves its ranks to a successor.
    """
    state = state_dir.choose(None, folder)
    paths = SupervisorPaths(folder, state.path, Console(present=False), private=True, warning=state.warning)
    idle = anyio.Event()
    if meeting is not None:
        paths, spec = msgspec.structs.replace(paths, node_name=meeting.node), meeting.part_of(spec)

    def adopt(workers: WorkerServer, tokens: WorkerTokens) -> Spawners:
        return AdoptedRanks(
            workers=workers,
            clock=Clock(),
            record=AdoptedRecord(home),
            on_open=lambda: on_open(paths.worker_socket, tokens.path(spec.job_id, cycle=0)),
            on_idle=idle.set,
            idle_s=ADOPTED_IDLE_S if meeting is None else meeting.idle_s,
            has_others=meeting is not None,
        )

    with anyio.CancelScope() as orphaned:
        opened = open_supervisor(
            paths,
            claims=JobClaims(()),
            make_spawners=adopt,
            open_peers=partial(_open_peers, meeting, orphaned.cancel) if meeting is not None else None,
        )
        async with opened as running:
            with registered(folder):
                await running.job_service.submit(spec, {})
                running.tasks.start_soon(open_slow_edges, running, spec.job_id)
                running.tasks.start_soon(_stop_when, idle, running.job_service, spec.job_id)
                await running.job_service.wait(spec.job_id)


def _open_peers(
    meeting: NodeMeeting, on_orphaned: Callable[[], None], base: Base
) -> contextlib.AbstractAsyncContextManager[PeersAndNodeRequests]:
    return meeting.open_peers(base.inbox.post, base.questions.put, on_orphaned)


async def _stop_when(idle: anyio.Event, job_service: JobService, job_id: str) -> None:
    await idle.wait()
    with contextlib.suppress(HoldfastError):  # It ended by itself in this moment.
        job_service.stop(job_id, reason="no rank is left, and no new one has connected", signal=0, of_node=True)
