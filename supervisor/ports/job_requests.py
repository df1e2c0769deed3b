"""What may people and programs ask of a supervisor, and of what is recorded?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import Evidence
from supervisor.ports.reports import JobReport, LogBytes, NodeReport, RecordedEvent


class RendezvousRequest(msgspec.Struct, frozen=True):
    """A rendezvous of torchrun's agents for a supervisor to lead. Files are absolute paths; "": none."""

    job_id: str
    host: str
    port: int
    everywhere: bool = False  # at all addresses of the node
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


class OpenLogs(Protocol):
    """Opens the output of one node. What it returns may raise NoAnswerError."""

    def __call__(
        self, *, rank: int | None, cycle: int | None, tail_lines: int, first_cycle: int, follow: bool
    ) -> AsyncGenerator[LogBytes]: ...


class JobRequests(Protocol):
    """The requests that people and programs may make of the engine. Refusals are `HoldfastError`s."""

    async def submit(self, spec: JobSpec, environment: Mapping[str, str]) -> str:
        """Starts a job and returns its id."""
        ...

    def jobs(self) -> Sequence[JobReport]:
        """Returns live and just ended jobs of this supervisor, newest first."""
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def stop(
        self, job_id: str, *, reason: str, signal: int, grace_s: float | None = None, of_node: bool = False
    ) -> None:
        """Ends the job. signal 0: as a command does (SIGTERM to the ranks); else as if the launcher had received it.

        `grace_s`: how long the ranks may take; None: as configured. `of_node`: this node's part is to end. If it holds
        no ranks, the job goes on without it.
        """
        ...

    def restart(self, job_id: str, *, reason: str) -> int:
        """Starts a new cycle without using the restart budget. Returns its number."""
        ...

    async def look(self, job_id: str, *, this_node: bool = False) -> JobReport | None:
        """Returns the job once it is taken over. Asks its nodes, or none (`this_node`); silent ones as last heard."""
        ...

    async def until_left(self, job_id: str, node: str) -> None:
        """Waits until a node has no part in the job, or the job has ended here. There may be no such job."""
        ...

    async def look_at_all(self) -> Sequence[JobReport]:
        """Does the same for all jobs."""
        ...

    async def stacks(self, job_id: str, rank: int | None) -> Evidence:
        """Returns the stacks of the ranks on all the job's nodes."""
        ...

    async def until_complete(self, job_id: str) -> None:
        """Waits, for a bounded time, until the other nodes of a job that has ended have told their last events."""
        ...

    def events_elsewhere(
        self, job_id: str, *, after_sequence: int, follow: bool
    ) -> AsyncGenerator[RecordedEvent] | None:
        """Yields the whole job's events if another node keeps them; None: this one does.

        Raises NoAnswerError, or ExhaustedError if the other node can't read its history.
        """
        ...

    def logs_elsewhere(self, job: JobReport) -> Mapping[str, OpenLogs]:
        """Returns functions that open the output of the job's ranks on its other nodes, by node."""
        ...

    def subscribe(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]:
        """Yields events from now to the last. A slow reader may lose some: see `sequence`."""
        ...

    def node(self) -> NodeReport:
        """Returns this node."""
        ...

    async def nodes(self) -> Sequence[NodeReport]:
        """Returns this node, and those with which it shares a job."""
        ...

    async def lead_rendezvous(self, rendezvous: RendezvousRequest) -> bool:
        """Leads a rendezvous. Returns False if the address is another node's, or another process leads there."""
        ...

    async def set_cordon(self, node: str, *, cordoned: bool, reason: str = "", leaves: bool = False) -> NodeReport:
        """Cordons or uncordons a node; `node` "": this one. Raises NotFoundError or NoAnswerError.

        `leaves`: its jobs on several nodes are to go on without it; the report names them.
        """
        ...


class JobHistory(Protocol):
    """The recorded data, committed or not. Calls block on a disk, unless they say otherwise: use a thread for them."""

    def jobs(self, *, below: tuple[int, str] | None = None) -> Iterator[JobReport]:
        """Yields jobs, newest first; live ones in their last saved state. Reads only as far as they are taken.

        `below`: only jobs with a smaller `list_key` than this one.
        """
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> Sequence[RecordedEvent]:
        """Returns events in the order of their sequence."""
        ...

    def events_in_memory(self, job_id: str, *, after_sequence: int, limit: int) -> Sequence[RecordedEvent] | None:
        """Returns the same without blocking; None if only the disk may have some of them."""
        ...
