"""How long does a job's spawner live, from its start until nothing of it is left?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from holdfast_wire.spawner_link import FromSpawner, Learned

from supervisor.config.job_spec import JobSpec
from supervisor.config.run_folder import run_folder
from supervisor.edges.machine.job_claims import JobClaims
from supervisor.edges.workers.spawner_link import SpawnerLink
from supervisor.edges.workers.spawner_process import SpawnerProcess, start_process
from supervisor.edges.workers.spawner_succession import SpawnerSuccession
from supervisor.errors import HoldfastError
from supervisor.ports import Spawner


class SpawnerKeeper(msgspec.Struct, frozen=True):
    """See ports.Spawners."""

    private: bool
    output_dir: Path | None  # None: the supervisor's own stdout and stderr
    supervisor_return_timeout_s: float = 60.0  # not private: how long its job outlives this supervisor
    open_files: tuple[int, ...] = ()  # see open_files.RaisedLimit
    claims: JobClaims = msgspec.field(default_factory=lambda: JobClaims(()))
    early: list[SpawnerProcess] = msgspec.field(
        default_factory=list[SpawnerProcess]
    )  # started already, for the first `keep`

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[FromSpawner], None],
    ) -> str:
        """Returns why it ended, once its processes are gone. Never raises for what the spawner did."""

        def start(
            learned: Learned | None, on_heard: Callable[[FromSpawner], None], on_lost: Callable[[str], None]
        ) -> SpawnerLink:
            started = self.early.pop() if self.early and learned is None else self._start(spec, environment, learned)
            return SpawnerLink(started.process, started.socket, spec.job_id, on_message=on_heard, on_lost=on_lost)

        try:
            succession = SpawnerSuccession(start, on_message)
        except HoldfastError as error:
            return str(error)
        on_started(succession)
        return await succession.run() or "the spawner ended as it was told"

    def _start(self, spec: JobSpec, environment: Mapping[str, str], learned: Learned | None) -> SpawnerProcess:
        return start_process(
            spec,
            env=environment,
            private=self.private,
            supervisor_return_timeout_s=self.supervisor_return_timeout_s,
            open_files=self.open_files,
            output_dir=self._output_dir_of(spec.job_id),
            learned=learned,
            claim=self.claims.descriptors(spec.job_id),
        )

    def _output_dir_of(self, job_id: str) -> Path | None:
        """The folder of this run of the job."""
        since_ns = self.claims.since_ns(job_id)
        if self.output_dir is None or since_ns is None:
            return self.output_dir
        return Path(run_folder(str(self.output_dir), job_id, since_ns))
