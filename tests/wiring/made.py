"""What runs jobs, on a real journal and a real worker socket; only the spawners are fakes."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.health.check_probes import NodeChecks
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.output_plan import Console
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.queries.question_inbox import QuestionInbox
from supervisor.wiring.job_wiring import Base, Jobs, wired
from supervisor.wiring.supervisor_paths import SupervisorPaths
from tests.engine.world import FakeSpawners


class Made(msgspec.Struct, frozen=True):
    base: Base
    jobs: Jobs
    spawners: FakeSpawners
    prepared: list[str]
    tasks: TaskGroup


def base_in(folder: Path, state: Path) -> Base:
    paths = SupervisorPaths(folder, state, Console(present=False), private=True, node_name="n0")
    clock, inbox, unsent, section_jobs = Clock(), EngineInbox(), UnsentEvents(), WaitingJobs()
    journal = Journal(state, on_alarm=print)
    return Base(
        paths=paths,
        clock=clock,
        inbox=inbox,
        engine_state=EngineState("n0"),
        journal=journal,
        publisher=EventPublisher(journal=journal, clock=clock, node_name="n0", unsent=unsent, unkept=None),
        unsent=unsent,
        unkept=None,
        questions=QuestionInbox(),
        workers=WorkerServer(socket_path=paths.worker_socket, events=inbox, clock=clock, on_sections=section_jobs.add),
        section_jobs=section_jobs,
        tokens=WorkerTokens(folder / "tokens"),
        claims=JobClaims(()),
        jobs={},
    )


@asynccontextmanager
async def made(
    state: Path, *, followed_by: Sequence[Follow] = (), ended: Sequence[Follow] = ()
) -> AsyncGenerator[Made]:
    with tempfile.TemporaryDirectory() as name:
        base, spawners, prepared = base_in(Path(name), state), FakeSpawners(), list[str]()
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            stack.callback(base.journal.close)
            checks = stack.enter_context(closing(NodeChecks()))
            gpus = NodeGpus(worker_socket=str(base.paths.worker_socket))
            stack.push_async_callback(gpus.aclose)
            await tasks.start(base.workers.run)
            jobs = wired(
                base,
                peers=LocalPeers(base.inbox.post),
                spawners=spawners,
                checks=checks,
                gpus=gpus,
                tasks=tasks,
                prepare=prepared.append,
                followed_by=followed_by,
                ended=ended,
            )
            await tasks.start(jobs.engine.run)
            yield Made(base, jobs, spawners, prepared, tasks)
            tasks.cancel_scope.cancel()
