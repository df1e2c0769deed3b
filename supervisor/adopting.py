"""How does a private supervisor serve ranks that somebody else has started, on one node or with those of others?

The wiring is daemon.py's, but for what starts processes: these run already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.daemon import open_slow_edges, open_supervisor, registered
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import state_dir
from supervisor.edges.machine.folders.token_files import TokenFiles
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.adopted.adopted_ranks import AdoptedRanks
from supervisor.edges.workers.adopted.adopted_record import AdoptedRecord
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.engine.desk import Desk
from supervisor.engine.output_plan import Console
from supervisor.errors import HoldfastError
from supervisor.place import Place
from supervisor.ports import Spawners

if TYPE_CHECKING:
    from supervisor.edges.peers.adopted_peers import NodeMeeting

ADOPTED_IDLE_S = 30.0  # a supervisor of adopted ranks waits this long for one to come, the first or another


async def serve_adopted(
    spec: JobSpec, home: Path, folder: Path, on_open: Callable[[Path, Path], None], meeting: NodeMeeting | None = None
) -> None:
    """A private supervisor for ranks that others start, in `folder`, until the last has ended.

    `home`: where the ranks that it meets are noted for a successor. `on_open` is told the worker socket and the token's
    file of cycle 0 once ranks can come. `meeting`: with the supervisors of other nodes; once their leader is lost, this
    one leaves its ranks to a successor, too.
    """
    state = state_dir.choose(None, folder)
    place = Place(folder, state.path, Console(present=False), private=True, warning=state.warning)
    idle = anyio.Event()
    if meeting is not None:
        place, spec = msgspec.structs.replace(place, node_name=meeting.node), meeting.part_of(spec)

    def adopt(workers: WorkerServer, tokens: TokenFiles) -> Spawners:
        return AdoptedRanks(
            workers=workers,
            clock=Clock(),
            record=AdoptedRecord(home),
            on_open=lambda: on_open(place.worker_socket, tokens.path(spec.job_id, cycle=0)),
            on_idle=idle.set,
            idle_s=ADOPTED_IDLE_S if meeting is None else meeting.idle_s,
            has_others=meeting is not None,
        )

    with anyio.CancelScope() as orphaned:
        open_peers = meeting.opener(orphaned.cancel) if meeting is not None else None
        async with open_supervisor(place, claims=JobClaims(()), make_spawners=adopt, open_peers=open_peers) as running:
            with registered(folder):
                await running.desk.submit(spec, {})
                running.tasks.start_soon(open_slow_edges, running, spec.job_id)
                running.tasks.start_soon(_stop_when, idle, running.desk, spec.job_id)
                await running.desk.wait(spec.job_id)


async def _stop_when(idle: anyio.Event, desk: Desk, job_id: str) -> None:
    await idle.wait()
    with contextlib.suppress(HoldfastError):  # It has ended by itself in this moment.
        desk.stop(job_id, reason="no rank is left, and no new one has connected", signal=0)
