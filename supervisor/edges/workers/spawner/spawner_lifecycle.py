"""How long does a job's spawner live, from its start until nothing of it is left?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
from holdfast_wire.spawner_link import FromSpawner, Learned

from supervisor.config.job_spec import JobSpec
from supervisor.config.run_folder import run_folder
from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.auto_heartbeat_pages import MainThreads
from supervisor.edges.workers.page_hand_over import PageOffers
from supervisor.edges.workers.spawner.lost_spawner_processes import reap_log_processes
from supervisor.edges.workers.spawner.spawner_discovery import FoundSpawner, SpawnerFiles
from supervisor.edges.workers.spawner.spawner_link import SpawnerLink
from supervisor.edges.workers.spawner.spawner_process import SpawnerProcess, start_process
from supervisor.edges.workers.spawner.spawner_succession import Hearing, SpawnerSuccession
from supervisor.edges.workers.spawner.worker_ends import OnEndSeen
from supervisor.errors import HoldfastError, NotNowError
from supervisor.ports.edges import Spawner, nobody_asks

START_TIMEOUT_S = 10.0  # for folder, files, fork and exec of a spawner on a busy machine
STUCK_STARTS_MAX = 2  # per job; each is a thread that waits for a file system


class _Left(msgspec.Struct):
    """The files that the spawners of one run of a job leave."""

    files: list[SpawnerFiles] = msgspec.field(default_factory=list[SpawnerFiles])  # until a later one keeps the job
    is_forgotten: bool = False  # files that come later are removed at once


class SpawnerLifecycle(msgspec.Struct, frozen=True):
    """Keeps spawners; see ports.Spawners."""

    private: bool
    output_dir: Path | None  # None: the supervisor's own stdout and stderr
    exits_dir: Path | None = None  # where, by run, it records how ranks end once this supervisor is gone
    supervisor_return_timeout_s: float = 60.0  # not private: how long its job outlives this supervisor
    open_files: tuple[int, ...] = ()  # see open_files.RaisedLimit
    claims: JobClaims = msgspec.field(default_factory=lambda: JobClaims(()))
    early: list[SpawnerProcess] = msgspec.field(
        default_factory=list[SpawnerProcess]
    )  # started already, for the first `keep`
    return_folder: Path | None = None  # where the next supervisor looks for spawners; None: private, without one
    # Spawners of the previous supervisor, by job: the job's next `keep` takes them over.
    found: dict[str, list[FoundSpawner]] = msgspec.field(default_factory=dict[str, list[FoundSpawner]])
    # By job, of the run that has not ended: its data is needed until its end is recorded.
    left: dict[str, _Left] = msgspec.field(default_factory=dict[str, _Left])
    pages: PageOffers = msgspec.field(default_factory=PageOffers)
    main_threads: MainThreads = msgspec.field(default_factory=MainThreads)
    start_timeout_s: float = START_TIMEOUT_S
    threads: dict[str, SideThreads] = msgspec.field(default_factory=dict[str, SideThreads])  # by job

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[FromSpawner], None],
        on_end_seen: OnEndSeen = nobody_asks,
    ) -> str:
        """Runs a job's spawner; returns why it ended, once its processes are gone or abandoned. Never raises."""

        left = self.left.setdefault(spec.job_id, _Left())

        def link(started: SpawnerProcess | FoundSpawner, hearing: Hearing, interpreter: str = "") -> SpawnerLink:
            return SpawnerLink(
                started,
                spec.job_id,
                on_message=hearing.on_message,
                on_lost=hearing.on_lost,
                on_end_seen=on_end_seen,
                let_go=partial(_keep_files, left),
                pages=self.pages,
                main_threads=self.main_threads,
                interpreter=interpreter,
            )

        async def start(learned: Learned | None, hearing: Hearing) -> SpawnerLink:
            is_first = learned is None and spec.nodes is None  # Other nodes of a job may go on without this one.
            interpreter = (spec.python or sys.executable) if is_first else ""
            if self.early and learned is None:
                return link(self.early.pop(), hearing, interpreter)
            return link(await self._start(spec, environment, learned), hearing, interpreter)

        succession = SpawnerSuccession(start, on_message, partial(_remove_earlier, left))
        found = self.found.pop(spec.job_id, None)
        if found:
            succession.take_back(found, link)
        try:
            return await succession.run(on_started) or "the spawner ended because it was asked to"
        except HoldfastError as error:
            return str(error)
        finally:
            self.pages.end(spec.job_id)
            if spec.logs.cycle_prefix:
                reap_log_processes()

    def leave(self, job_id: str, files: SpawnerFiles) -> None:
        """Notes the files of a spawner that ended under the previous supervisor."""
        _keep_files(self.left.setdefault(job_id, _Left()), files)

    def end_run(self, job_id: str) -> Callable[[], None]:
        """Returns the function that removes the files of the run, which has ended, once that is recorded.

        A next run of the id may begin before. A killed spawner may leave its files later: they are removed, too.
        """
        return partial(_forget, self.left.pop(job_id, None))

    async def _start(self, spec: JobSpec, environment: Mapping[str, str], learned: Learned | None) -> SpawnerProcess:
        """Starts a spawner in a thread, since a dead file system may hang it. Raises HoldfastError."""
        steps = ["starting a thread"]
        output_dir = self._of_run(self.output_dir, spec.job_id)
        exits_dir = self._of_run(Path(spec.log_dir) if self.exits_dir and spec.log_dir else self.exits_dir, spec.job_id)
        threads = self.threads.setdefault(spec.job_id, SideThreads(stuck_max=STUCK_STARTS_MAX))

        def start() -> SpawnerProcess:
            return start_process(
                spec,
                env=environment,
                private=self.private,
                supervisor_return_timeout_s=self.supervisor_return_timeout_s,
                open_files=self.open_files,
                output_dir=output_dir,
                exit_record_dir=str(exits_dir or ""),
                learned=learned,
                claim=self.claims.descriptors(spec.job_id),
                return_folder=self.return_folder if spec.may_come_back else None,
                on_step=steps.append,
                apart=True,
            )

        try:
            return await threads.call(start, timeout_s=self.start_timeout_s, discard=SpawnerProcess.discard)
        except StuckError as error:
            raise NotNowError(
                f"cannot start the spawner of job {spec.job_id}: {steps[-1]}: {error}; "
                "check that the file system of that path answers"
            ) from error
        except OSError as error:
            raise NotNowError(f"cannot start the spawner of job {spec.job_id}: {error}; see holdfast doctor") from error
        finally:
            if not threads.stuck:
                self.threads.pop(spec.job_id, None)

    def _of_run(self, folder: Path | None, job_id: str) -> Path | None:
        """Returns the folder of this run of the job in `folder`."""
        since_ns = self.claims.since_ns(job_id)
        if folder is None or since_ns is None:
            return folder
        return Path(run_folder(str(folder), job_id, since_ns))


def _forget(left: _Left | None) -> None:
    if left is not None:
        left.is_forgotten = True
        _remove_files(left)


def _keep_files(left: _Left, files: SpawnerFiles) -> None:
    if left.is_forgotten:
        files.remove()
        return
    _remove_earlier(left, files)
    left.files.append(files)


def _remove_earlier(left: _Left, later: SpawnerFiles | None) -> None:
    """Removes the files of earlier spawners once `later` has the job's data. One that loads has read nothing yet.

    The next supervisor would wait for a spawner that could not be killed.
    """
    if left.files and later is not None and os.path.exists(later.keep_path):
        _remove_files(left)


def _remove_files(left: _Left) -> None:
    while left.files:
        left.files.pop().remove()
