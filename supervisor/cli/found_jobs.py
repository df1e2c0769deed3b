"""What is known of a job that was found, and which jobs are parts of one with several nodes on this machine?"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from supervisor.cli import job_owners
from supervisor.edges.machine.processes import process_table
from supervisor.ports.reports import JobReport

if TYPE_CHECKING:
    from supervisor.edges.operators.control_client import ControlClient

PRIVATE_ENDS_WITHIN_S = 10.0  # after it has closed its connections: it then writes the rest of its journal

Run = tuple[int, str, int]  # FoundJob.run


class Answering(msgspec.Struct, frozen=True):
    """A supervisor that accepts connections."""

    client: ControlClient
    is_private: bool
    uid: int  # whose it is: see job_owners.py
    pid: int = 0  # 0: unknown

    @property
    def is_own(self) -> bool:
        return self.uid == os.geteuid()

    def await_end(self) -> None:
        """Returns once a private supervisor has ended: only then is its record of the job complete."""
        with suppress(OSError):  # It has ended already.
            descriptor = process_table.descriptor(self.pid)
            try:
                select.select([descriptor], [], [], PRIVATE_ENDS_WITHIN_S)
            finally:
                os.close(descriptor)


class FoundJob(msgspec.Struct, frozen=True):
    """A job and the supervisor that knows it; None if only a journal does. `uid`: whose it is."""

    report: JobReport
    supervisor: Answering | None
    uid: int = msgspec.field(default_factory=os.geteuid)

    @property
    def is_own(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def name(self) -> str:
        """Returns the name by which this user can mean the job."""
        return job_owners.name_of(self.report.job_id, self.uid)

    @property
    def run(self) -> Run:
        """Returns what tells the runs of all users apart."""
        return self.uid, self.report.job_id, self.report.submitted_at_ns

    @property
    def is_lost(self) -> bool:
        """Returns whether its supervisor has certainly ended, as a journal shows."""
        if self.supervisor is not None:
            return False
        from supervisor.edges.machine.journal.journal_reader import is_lost

        return is_lost(self.report)

    @property
    def is_live(self) -> bool:
        return self.supervisor is not None and not self.report.state.has_ended


def each_once(jobs: Sequence[FoundJob]) -> list[FoundJob]:
    """Leaves out further parts of a job of several nodes here: of each job, one part is left, a live one if any is.

    Each live part shows the whole job and acts on it. Of those that have ended, the one that knows most nodes does. A
    part that has left a job which goes on is left out, too.
    """
    shown: set[int] = set()
    live: set[tuple[int, str, tuple[str, ...]]] = set()
    of_live: set[_Folder] = set()
    known: set[_Folder] = set()
    for job in sorted(jobs, key=lambda job: (not job.is_live, -len(job.report.nodes))):
        folders, own = _folders(job), (job.uid, job.report.job_id, job.report.log_dir)
        is_part = own in known or (_live_key(job) in live if job.is_live else not folders.isdisjoint(of_live))
        known |= folders
        if job.is_live:
            live.add(_live_key(job))
            of_live |= folders
        if not is_part:
            shown.add(id(job))
    return [job for job in jobs if id(job) in shown]


def live_parts(job: FoundJob, jobs: Sequence[FoundJob]) -> list[FoundJob]:
    """Returns the parts of a live job among these: `job` first."""
    folders = _folders(job)
    others = (each for each in jobs if each.is_live and each.run != job.run)
    return [job, *(each for each in others if _live_key(each) == _live_key(job) or folders & _folders(each))]


_Folder = tuple[int, str, str]  # of one node's part in a run of a job: whose, the job's id, where it logs


def _folders(job: FoundJob) -> set[_Folder]:
    """Returns the folders of all nodes of the job, as far as this part of it knows them."""
    logs = (job.report.log_dir, *(node.log_dir for node in job.report.nodes))
    return {(job.uid, job.report.job_id, folder) for folder in logs if folder}


def _live_key(job: FoundJob) -> tuple[int, str, tuple[str, ...]]:
    """Returns what parts of one live job have in common before any of them has found the others.

    A machine runs one group of an id at a time, so two live runs of one user are two nodes of it.
    """
    return job.uid, job.report.job_id, job.report.command
