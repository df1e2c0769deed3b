"""Which supervisors can this user ask, and which job does a name mean?

Root asks those of all users. A user can put a program of her own in the place of her supervisor, so none of them counts
beyond the jobs of its own user, and none holds up the others.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from supervisor.cli import job_owners, output
from supervisor.cli.concurrent_queries import ask_all
from supervisor.cli.history import History
from supervisor.cli.next_supervisor import RETURNS_WITHIN_S, wait_for_next
from supervisor.cli.unresponsive_supervisor import Silence, silence
from supervisor.edges.machine.folders import private_dir, private_registry, socket_dir
from supervisor.edges.machine.processes import process_table
from supervisor.errors import ExhaustedError, HoldfastError, InvalidRequestError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from supervisor.edges.operators.control_client import ControlClient

JOURNAL_JOBS_MAX = 1_000
NEAR_MATCHES = 3
OWN_LIST_S = 5.0  # for a supervisor's list of jobs or nodes
OTHERS_LIST_S = 1.5  # the same of another user, among several
GRACE_S = 0.5  # for an answer that came at the last moment


class Answering(msgspec.Struct, frozen=True):
    """A supervisor that accepts connections."""

    client: ControlClient
    is_private: bool
    uid: int  # whose it is: see job_owners.py
    pid: int = 0  # 0: unknown

    @property
    def is_own(self) -> bool:
        return self.uid == os.geteuid()


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
    def run(self) -> tuple[int, str, int]:
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
        self.history = History(arguments.state_dir)
        self._closing = contextlib.ExitStack()
        self.answering: list[Answering] = []
        self.silence = Silence()
        self._refusals: list[str] = []
        self._runs: list[FoundJob] = []
        self._failed: list[Answering] = []  # to answer a list: not asked for another

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
            found = job_owners.probe_supervisor(path)
            if not found.why_not or self._comes_back(path):
                self._add(path, is_private=False)
            elif found.is_slow:
                self._miss(path, 0, found.why_not)
            elif candidate.explicit:
                raise socket_dir.closed_by_another(candidate.path) or NoSupervisorError(
                    f"cannot reach a supervisor at {path}: {found.why_not}; start one with "
                    f"holdfast daemon --socket-dir {candidate.path}, or name another directory"
                )
            elif "no such file" not in found.why_not:
                self._refusals.append(f"the supervisor at {path} was not asked: {found.why_not}")
        private_dir.sweep()
        for registered in () if self._is_explicit else private_registry.registered():
            self._add(
                registered.directory / socket_dir.CONTROL_SOCKET,
                is_private=not registered.is_daemon,
                pid=registered.pid,
            )

    def _comes_back(self, socket_path: Path) -> bool:
        """Returns whether a supervisor answers there in the end, if its jobs run on without one."""
        folder = socket_path.parent
        if not self._waits or not os.path.isdir(folder) or folder.lstat().st_uid != os.geteuid():
            return False  # Nothing in somebody else's folder is read.
        is_back = wait_for_next(folder / socket_dir.SPAWNERS, socket_path, self._say)
        if is_back is False:
            self._miss(socket_path, 0, "its jobs run on, but no supervisor has come back for them")
        return bool(is_back)

    def _miss(self, socket_path: Path, pid: int, why: str) -> None:
        """Notes that a supervisor of this user does not answer, and says so once."""
        sentence = silence(socket_path, pid, why)
        if self.silence.add(socket_path, sentence):
            self._say(sentence)

    def _add_users_of(self, service: Path) -> bool:
        """Adds this user's running supervisors of a service of several users; for root, those of all users.

        Returns False if none runs: then the service is asked, which starts one.
        """
        users = service / socket_dir.USERS
        if not os.path.isdir(users):  # unlike Path.is_dir, no error for a folder of another user
            return False
        if os.geteuid() == 0:
            self._add(service / socket_dir.CONTROL_SOCKET, is_private=False)
        for path in sorted(socket_dir.sockets_of_users(users)):
            self._add(path, is_private=False)
        return bool(self.answering)

    def _add(self, path: Path, *, is_private: bool, pid: int = 0) -> None:
        """Adds a supervisor that accepts connections. `pid`: its process, where that is recorded."""
        from supervisor.edges.operators.control_client import ControlClient

        if any(each.client.socket_path == path for each in self.answering):
            return
        found = job_owners.probe_supervisor(path)
        if not found.why_not:
            client = self._closing.enter_context(ControlClient(path))
            self.answering.append(Answering(client, is_private, found.uid, pid or found.pid))
        elif pid and found.is_slow:
            self._miss(path, pid, found.why_not)

    @property
    def own(self) -> list[Answering]:
        """Returns the supervisors of this user, or those in the directory that the user has named."""
        return [each for each in self.answering if each.is_own or (self._is_explicit and len(self.answering) == 1)]

    def ask_each(self, ask: Callable[[Answering, float], Answer]) -> list[tuple[Answering, Answer]]:
        """Returns the answers of all supervisors, which are asked at the same time; says which ones did not answer.

        `ask` gets the time that this supervisor has. One that has ended meanwhile is left out, or the next one is asked
        if its jobs run on. One of this user's own that is stopped is not waited for. Raises the refusal of this user's
        own supervisor. One that has not answered before is not asked again.
        """
        asked = [each for each in self.answering if each not in self._failed and not self._is_stopped(each)]
        limits_s = [OWN_LIST_S if each.is_own or len(self.answering) == 1 else OTHERS_LIST_S for each in asked]
        questions = [partial(ask, each, limit_s) for each, limit_s in zip(asked, limits_s, strict=True)]
        told = ask_all(questions, within_s=max(limits_s, default=0.0) + GRACE_S)
        lost = [number for number, answer in enumerate(told) if self._may_come_back(asked[number], answer)]
        again = [partial(self._ask_next, asked[number], ask, limits_s[number]) for number in lost]
        next_s = RETURNS_WITHIN_S + max(limits_s, default=0.0) + GRACE_S
        for number, answer in zip(lost, ask_all(again, within_s=next_s), strict=True):
            told[number] = answer
        answers: list[tuple[Answering, Answer]] = []
        for each, answer in zip(asked, told, strict=True):
            path = each.client.socket_path
            if not isinstance(answer, HoldfastError):
                answers.append((each, answer))
                continue
            self._failed.append(each)
            if isinstance(answer, ExhaustedError) and each in self.own:
                why = str(answer).removeprefix(f"cannot ask the supervisor at {path}: ").removesuffix("; try again")
                self._miss(path, each.pid, why)
            elif each.is_own and not isinstance(answer, NoSupervisorError):
                raise answer
            elif not isinstance(answer, NoSupervisorError):
                self._say(self._why_missing(each, answer))
        return answers

    def _may_come_back(self, each: Answering, answer: object) -> bool:
        return self._waits and isinstance(answer, NoSupervisorError) and not each.is_private

    def _ask_next(self, each: Answering, ask: Callable[[Answering, float], Answer], limit_s: float) -> Answer:
        """Asks the supervisor that takes the place of one that has ended. Raises NoSupervisorError if none comes."""
        path = each.client.socket_path
        if not self._comes_back(path):
            raise NoSupervisorError(f"cannot ask the supervisor at {path}: it has ended; try again")
        return ask(each, limit_s)

    def _is_stopped(self, each: Answering) -> bool:
        """Returns whether it is this user's own and can't answer until somebody continues it, and says so."""
        entry = process_table.look_up(each.pid) if each.is_own and each.pid else None
        if entry is None or entry.state != "T":
            return False
        self._miss(each.client.socket_path, each.pid, "it does not answer")
        return True

    def _why_missing(self, each: Answering, why: HoldfastError) -> str:
        place = each.client.socket_path.parent
        whose = job_owners.user_name(each.uid)
        return f"what user {whose} has here is not shown: {why}; to ask it alone, give --socket-dir {place}"

    def jobs(self, *, include_ended: bool) -> list[FoundJob]:
        """Returns jobs, newest first. Leaves out a supervisor that has ended meanwhile, and reports one that hangs.

        A job is left out as known already only because of another one of the same user. One that cannot be read is left
        out with a sentence for `tell_refusals`.
        """
        found: dict[tuple[int, str, int], FoundJob] = {}
        unread: list[str] = []
        for each, reports in self.ask_each(
            lambda each, limit_s: each.client.jobs(
                include_ended=include_ended, within_s=limit_s, on_unreadable=unread.append
            )
        ):
            for report in reports:
                job = FoundJob(report, each, each.uid)
                known = found.get(job.run)
                if known is None or (known.report.state.has_ended and not report.state.has_ended):
                    found[job.run] = job
        self._refusals += [sentence for sentence in unread if sentence not in self._refusals]
        if include_ended:
            for report in self._recorded():
                job = FoundJob(report, None)
                found.setdefault(job.run, job)
        self._runs = sorted(found.values(), key=lambda job: (job.report.submitted_at_ns, *job.run), reverse=True)
        return _each_once(self._runs)

    def live_parts(self, job: FoundJob) -> list[FoundJob]:
        """Returns the parts of a live job that run on this machine, as seen when jobs were last listed: `job` first."""
        folders = _folders(job)
        others = (each for each in self._runs if each.is_live and each.run != job.run)
        return [job, *(each for each in others if _live_key(each) == _live_key(job) or folders & _folders(each))]

    def find(self, name: str, *, verb: str, live_only: bool = False) -> FoundJob:
        """Returns the newest run of that id or unique prefix, a live one first. Raises NotFoundError, …

        If several users have a job of that id, `name` must say whose: USER/JOB.
        """
        if not name:  # An unset variable of a shell must not mean any job.
            raise InvalidRequestError(
                f"cannot {verb} a job: an empty text names none; give a name that holdfast jobs shows"
            )
        # Live jobs first: all that have ended may take longer to list than a command waits.
        running = self.jobs(include_ended=False)
        meant, beginning = _meant(name, running)
        exact = [job for job in meant if job.is_live and job.report.job_id == beginning]
        is_one_users = live_only or beginning != name or self.own == self.answering
        if exact and is_one_users:
            return _only(exact, exact, name, verb)
        everything = self.jobs(include_ended=True)
        # A supervisor that has no time for the ended ones has told the live ones.
        late = {job.run: job for job in running if job.supervisor in self._failed}
        jobs = [*late.values(), *(job for job in everything if job.run not in late)]
        meant, beginning = _meant(name, jobs)
        for fits in (_is_named(beginning), _begins_with(beginning)):
            matches = [job for job in meant if fits(job.report.job_id)]
            live = [job for job in matches if job.is_live]
            if matches and not live and live_only:
                self.silence.check(f"{verb} job {name}")
            if matches:
                return _only(live or matches, live if live and live_only else matches, name, verb)
        self.silence.check(f"{verb} job {name}")
        if live_only and not self.answering:
            raise NoSupervisorError(
                f"cannot {verb} job {name}: no supervisor is running; holdfast jobs shows what has run" + self._hint()
            )
        near = difflib.get_close_matches(name, [job.report.job_id for job in jobs], n=NEAR_MATCHES)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "see holdfast jobs"
        raise NotFoundError(f"cannot {verb} job {name}: there is no such job; {hint}" + self._hint())

    def tell_refusals(self) -> None:
        """Says which supervisors could not be asked, and which jobs not read, for lists that may be incomplete."""
        for refusal in self._refusals:
            self._say(refusal)

    def _hint(self) -> str:
        return f" ({'; '.join(self._refusals)})" if self._refusals else ""

    def _recorded(self) -> list[JobReport]:
        if not self._reads_journals:
            return []
        try:
            return self.history.read(lambda reader: reader.jobs(limit=JOURNAL_JOBS_MAX))
        except HoldfastError as error:
            if not self.answering:
                raise
            self._say(str(error))
            return []


def add_place_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--socket-dir", metavar="DIR", help="ask only the supervisor whose sockets are there")
    parser.add_argument("--state-dir", metavar="DIR", help="read finished jobs from the journal there")


def known_ranks(report: JobReport, rank: int | None) -> str:
    """Returns which ranks the job has, if `rank` is not among them; "" otherwise.

    It may have had others: a smaller cycle has fewer, and the record of a large job names only those of one node.
    """
    ranks = sorted(each.rank for each in report.ranks)
    if rank is None or not ranks or rank in ranks:
        return ""
    have = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]} only"
    return f"job {report.job_id} has {have} as far as is known here"


def _each_once(jobs: Sequence[FoundJob]) -> list[FoundJob]:
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


def _meant(name: str, jobs: list[FoundJob]) -> tuple[list[FoundJob], str]:
    """Returns the jobs that a name may mean, and how their ids begin: USER/JOB means only that user's."""
    user, between, job_id = name.partition(job_owners.BETWEEN)
    theirs = [job for job in jobs if between and job_owners.is_user(user, job.uid)]
    return (theirs, job_id) if theirs else (jobs, name)


def _is_named(name: str) -> Callable[[str], bool]:
    return lambda job_id: job_id == name


def _begins_with(name: str) -> Callable[[str], bool]:
    return lambda job_id: bool(name) and job_id.startswith(name)


def _only(chosen: Sequence[FoundJob], candidates: Sequence[FoundJob], name: str, verb: str) -> FoundJob:
    """Returns the newest of one id. Fails if several ids have that prefix, several users the id, or several live jobs.

    `candidates`: the jobs that might be meant; `chosen`: those of them that are taken first.
    """
    ids = list(dict.fromkeys(job.report.job_id for job in chosen))
    if len(ids) > 1:
        names = list(dict.fromkeys(job.name for job in chosen))
        raise NotFoundError(f"cannot {verb} job {name}: it may mean {', '.join(names[:5])}; type more characters")
    users = sorted({job.uid for job in candidates if job.report.job_id == ids[0]})
    if len(users) > 1:
        names = [f"{job_owners.user_name(uid)}{job_owners.BETWEEN}{ids[0]}" for uid in users[:5]]
        raise NotFoundError(
            f"cannot {verb} job {name}: {len(users)} users have one of that id; choose {' or '.join(names)}"
        )
    live = [job for job in chosen if job.is_live and job.supervisor is not None]
    if len(live) > 1:
        places = " or ".join(str(job.supervisor.client.socket_path.parent) for job in live if job.supervisor)
        raise NotFoundError(
            f"cannot {verb} job {ids[0]}: {len(live)} supervisors have one of that id; "
            f"choose with --socket-dir {places}"
        )
    return chosen[0]
