"""Which supervisors can this user ask, and which job does a name mean?"""

from __future__ import annotations

import contextlib
import difflib
import os
import pwd
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from supervisor.cli import output
from supervisor.edges.machine.folders import private_dir, private_registry, socket_dir, state_dir
from supervisor.errors import ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports import JobReport

if TYPE_CHECKING:
    from supervisor.edges.operators.control_client import ControlClient

JOURNAL_JOBS_MAX = 1_000
NEAR_MATCHES = 3


class Answering(msgspec.Struct, frozen=True):
    """A supervisor that accepts connections."""

    client: ControlClient
    is_private: bool


class FoundJob(msgspec.Struct, frozen=True):
    """A job and the supervisor that knows it; None if only a journal does."""

    report: JobReport
    supervisor: Answering | None

    @property
    def is_live(self) -> bool:
        return self.supervisor is not None and not self.report.state.has_ended


class Supervisors:
    """All supervisors of this user that answer, and the journals. A context manager that closes their channels."""

    def __init__(self, arguments: Namespace, *, say: Callable[[str], None] = output.say, waits: bool = False) -> None:
        """`say` gets a sentence about each supervisor that could not be asked.

        `waits`: a supervisor that was killed, and whose jobs run on, is given time to be started again.
        """
        self._say = say
        self._waits = waits
        self._candidates = socket_dir.candidates(arguments.socket_dir)
        self._is_explicit = any(candidate.explicit for candidate in self._candidates)
        self._reads_journals = not self._is_explicit or bool(arguments.state_dir)
        self.state_dirs = state_dir.places(arguments.state_dir)
        self._closing = contextlib.ExitStack()
        self.answering: list[Answering] = []
        self._refusals: list[str] = []

    def __enter__(self) -> Supervisors:
        with contextlib.ExitStack() as undo:
            undo.callback(self._closing.close)  # Nobody calls __exit__ of what was not entered.
            self._find()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _find(self) -> None:
        for candidate in self._candidates:
            if self._add_users_of(candidate.path):
                continue
            path = candidate.path / socket_dir.CONTROL_SOCKET
            why_not = why_silent(path)
            if not why_not or (self._waits and self._wait_for_next(candidate.path)):
                self._add(path, is_private=False)
            elif candidate.explicit:
                raise socket_dir.closed_by_another(candidate.path) or NoSupervisorError(
                    f"cannot reach a supervisor at {path}: {why_not}; start one with "
                    f"holdfast daemon --socket-dir {candidate.path}, or name another directory"
                )
            elif "no such file" not in why_not:
                self._refusals.append(f"the supervisor at {path} was not asked: {why_not}")
        private_dir.sweep()
        for registered in () if self._is_explicit else private_registry.registered():
            path = registered.directory / socket_dir.CONTROL_SOCKET
            if not why_silent(path):
                self._add(path, is_private=True)

    def _wait_for_next(self, folder: Path) -> bool:
        from supervisor.cli.next_supervisor import wait_for_next  # Late: it is hardly ever needed.

        return wait_for_next(folder / socket_dir.SPAWNERS, folder / socket_dir.CONTROL_SOCKET, self._say)

    def _add_users_of(self, service: Path) -> bool:
        """Adds this user's running supervisors of a service of several users; for root, those of all users.

        Returns False if none runs: then the service is asked, which starts one.
        """
        users = service / socket_dir.USERS
        if not os.path.isdir(users):  # unlike Path.is_dir, no error for a folder of another user
            return False
        if os.geteuid() == 0 and not why_silent(service / socket_dir.CONTROL_SOCKET):
            self._add(service / socket_dir.CONTROL_SOCKET, is_private=False)
        for path in sorted(socket_dir.sockets_of_users(users)):
            if not why_silent(path):
                self._add(path, is_private=False)
        return bool(self.answering)

    def _add(self, path: Path, *, is_private: bool) -> None:
        from supervisor.edges.operators.control_client import ControlClient

        if all(each.client.socket_path != path for each in self.answering):
            self.answering.append(Answering(self._closing.enter_context(ControlClient(path)), is_private))

    def jobs(self, *, include_ended: bool) -> list[FoundJob]:
        """Returns jobs, newest first. Leaves out a supervisor that has ended meanwhile, and reports one that hangs."""
        found: dict[tuple[str, int], FoundJob] = {}
        for each in self.answering:
            try:
                for report in each.client.jobs(include_ended=include_ended):
                    known = found.get(_key(report))
                    if known is None or (known.report.state.has_ended and not report.state.has_ended):
                        found[_key(report)] = FoundJob(report, each)
            except NoSupervisorError:
                continue
            except ExhaustedError as error:
                self._say(str(error))
        if include_ended:
            for report in self._recorded():
                found.setdefault(_key(report), FoundJob(report, None))
        jobs = sorted(found.values(), key=lambda each: _key(each.report)[::-1], reverse=True)
        return [job for number, job in enumerate(jobs) if not any(_is_same(job, other) for other in jobs[:number])]

    def find(self, name: str, *, verb: str, live_only: bool = False) -> FoundJob:
        """Returns the newest run of that id or unique prefix, a live one first. Raises NotFoundError, …"""
        jobs = self.jobs(include_ended=True)
        for fits in (_is_named(name), _begins_with(name)):
            for chosen in ([job for job in jobs if job.is_live], jobs):
                matches = [job for job in chosen if fits(job.report.job_id)]
                if matches:
                    return _only(matches, name, verb)
        if live_only and not self.answering:
            raise NoSupervisorError(
                f"cannot {verb} job {name}: no supervisor is running; holdfast jobs shows what has run" + self._hint()
            )
        near = difflib.get_close_matches(name, [job.report.job_id for job in jobs], n=NEAR_MATCHES)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "see holdfast jobs"
        raise NotFoundError(f"cannot {verb} job {name}: there is no such job; {hint}" + self._hint())

    def tell_refusals(self) -> None:
        """Says which supervisors could not be asked, for lists that may be incomplete."""
        for refusal in self._refusals:
            self._say(refusal)

    def _hint(self) -> str:
        return f" ({'; '.join(self._refusals)})" if self._refusals else ""

    def _recorded(self) -> list[JobReport]:
        if not self._reads_journals:
            return []
        from supervisor.edges.machine.journal.journal_reader import open_reader

        try:
            with open_reader(*self.state_dirs) as reader:
                return reader.jobs(limit=JOURNAL_JOBS_MAX)
        except HoldfastError as error:
            if not self.answering:
                raise
            self._say(str(error))
            return []


def why_silent(socket_path: Path) -> str:
    """Returns "" if the socket accepts a connection within a second, else why not. Needs no gRPC."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(socket_dir.PROBE_TIMEOUT_S)
        try:
            probe.connect(str(socket_path))
        except TimeoutError:
            return f"it does not accept within {socket_dir.PROBE_TIMEOUT_S:g} s"
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return ""


def add_place_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--socket-dir", metavar="DIR", help="ask only the supervisor whose sockets are there")
    parser.add_argument("--state-dir", metavar="DIR", help="read finished jobs from the journal there")


def check_rank(report: JobReport, rank: int | None, *, verb: str) -> None:
    """Raises NotFoundError for a rank that the job does not have, as far as its ranks are known."""
    ranks = sorted(each.rank for each in report.ranks)
    if rank is None or not ranks or rank in ranks:
        return
    have = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]} only"
    raise NotFoundError(f"cannot {verb} rank {rank}: job {report.job_id} has {have}")


def who_asks() -> str:
    """Returns the user's name for the reason that is recorded."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user id {os.getuid()}"


def _is_same(job: FoundJob, other: FoundJob) -> bool:
    """Whether both are parts of one live job with nodes here: each part shows, and acts on, the whole job."""
    return (
        job.is_live
        and other.is_live
        and job.report.job_id == other.report.job_id
        and any(node.log_dir == job.report.log_dir for node in other.report.nodes if node.log_dir)
    )


def _key(report: JobReport) -> tuple[str, int]:
    return report.job_id, report.submitted_at_ns


def _is_named(name: str) -> Callable[[str], bool]:
    return lambda job_id: job_id == name


def _begins_with(name: str) -> Callable[[str], bool]:
    return lambda job_id: bool(name) and job_id.startswith(name)


def _only(matches: Sequence[FoundJob], name: str, verb: str) -> FoundJob:
    """Returns the newest of one id. Fails if several ids have that prefix, or several live jobs the id."""
    ids = list(dict.fromkeys(job.report.job_id for job in matches))
    if len(ids) > 1:
        raise NotFoundError(f"cannot {verb} job {name}: it may mean {', '.join(ids[:5])}; type more characters")
    live = [job for job in matches if job.is_live and job.supervisor is not None]
    if len(live) > 1:
        places = " or ".join(str(job.supervisor.client.socket_path.parent) for job in live if job.supervisor)
        raise NotFoundError(
            f"cannot {verb} job {ids[0]}: {len(live)} supervisors have one of that id; "
            f"choose with --socket-dir {places}"
        )
    return matches[0]
