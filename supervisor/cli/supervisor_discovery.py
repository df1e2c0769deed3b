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
from typing import TypeVar

from supervisor.cli import job_owners, output
from supervisor.cli.concurrent_queries import ask_all
from supervisor.cli.found_jobs import Answering, FoundJob, Run, each_once, live_parts
from supervisor.cli.history import History
from supervisor.cli.next_supervisor import RETURNS_WITHIN_S, wait_for_next
from supervisor.cli.unresponsive_supervisor import Silence, silence
from supervisor.edges.machine.folders import private_dir, private_registry, socket_dir
from supervisor.edges.machine.processes import process_table
from supervisor.errors import ExhaustedError, HoldfastError, InvalidRequestError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport

Answer = TypeVar("Answer")

JOURNAL_JOBS_MAX = 1_000
NEAR_MATCHES = 3
OWN_LIST_S = 5.0  # for a supervisor's list of jobs or nodes
OTHERS_LIST_S = 1.5  # the same of another user, among several
GRACE_S = 0.5  # for an answer that came at the last moment


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
        self._late: dict[Answering, ExhaustedError] = {}  # have no time to list the ended jobs; the live ones are known

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

    def ask_each(
        self,
        ask: Callable[[Answering, float], Answer],
        *,
        on_late: Callable[[Answering, ExhaustedError], None] | None = None,
    ) -> list[tuple[Answering, Answer]]:
        """Returns the answers of all supervisors, which are asked at the same time; says which ones did not answer.

        `ask` gets the time that this supervisor has. One that has ended meanwhile is left out, or the next one is asked
        if its jobs run on. One of this user's own that is stopped is not waited for. Raises the refusal of this user's
        own supervisor. One that has not answered before is not asked again.

        `on_late` gets each supervisor that has not answered in time; None: it counts as one that does not answer.
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
            if isinstance(answer, ExhaustedError) and on_late is not None:
                on_late(each, answer)
                continue
            self._failed.append(each)
            if isinstance(answer, ExhaustedError) and each in self.own:
                self._miss(path, each.pid, _why_late(path, answer))
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
        out with a sentence for `tell_refusals`. If a supervisor has no time to list the ended ones, this says so, and
        its live ones are there.
        """
        found = self._list(include_ended=False)
        if include_ended:
            found = self._list(include_ended=True)
        for each, sentence in zip(self._late, self._missing(), strict=True):
            if each not in self.own or self.silence.add(each.client.socket_path, sentence):
                self._say(sentence)
        return found

    def _list(self, *, include_ended: bool) -> list[FoundJob]:
        """Asks for all jobs, or for the live ones.

        A supervisor that has no time for all of them keeps those that are live as seen when jobs were last listed. So
        the live ones are always listed first: they are few.
        """
        unread: list[str] = []

        def ask(each: Answering, limit_s: float) -> list[JobReport]:
            if include_ended and each in self._late:
                raise self._late[each]
            return each.client.jobs(include_ended=include_ended, within_s=limit_s, on_unreadable=unread.append)

        told = self.ask_each(ask, on_late=self._late.__setitem__ if include_ended else None)
        jobs = [job for job in self._runs if include_ended and job.supervisor in self._late]
        jobs += [FoundJob(report, each, each.uid) for each, reports in told for report in reports]
        found: dict[Run, FoundJob] = {}
        for job in jobs:
            known = found.get(job.run)
            if known is None or (known.report.state.has_ended and not job.report.state.has_ended):
                found[job.run] = job
        self._refusals += [sentence for sentence in unread if sentence not in self._refusals]
        if include_ended:
            for report in self._recorded():
                job = FoundJob(report, None)
                found.setdefault(job.run, job)
        return self._note(found)

    def _note(self, found: dict[Run, FoundJob]) -> list[FoundJob]:
        self._runs = sorted(found.values(), key=lambda job: (job.report.submitted_at_ns, *job.run), reverse=True)
        return each_once(self._runs)

    def _missing(self) -> list[str]:
        """Returns a sentence about each supervisor that had no time to list its ended jobs."""
        paths = [(each.client.socket_path, error) for each, error in self._late.items()]
        return [f"ended jobs of the supervisor at {path} may be missing: {_why_late(path, e)}" for path, e in paths]

    def _add_named(self, name: str) -> list[FoundJob]:
        """Asks those that could not list their ended jobs for the one of exactly this name. Returns all jobs."""

        def ask(each: Answering, limit_s: float) -> JobReport | None:
            user, between, job_id = name.partition(job_owners.BETWEEN)
            is_users = between and job_owners.is_user(user, each.uid)
            try:
                return each.client.job(job_id if is_users else name, within_s=limit_s) if each in self._late else None
            except NotFoundError:
                return None

        found = {job.run: job for job in self._runs}
        for each, report in self.ask_each(ask):
            job = FoundJob(report, each, each.uid) if report is not None else None
            if job is not None and (job.run not in found or not found[job.run].is_live):
                found[job.run] = job
        return self._note(found)

    def live_parts(self, job: FoundJob) -> list[FoundJob]:
        """Returns the parts of a live job that run on this machine, as seen when jobs were last listed: `job` first."""
        return live_parts(job, self._runs)

    def find(self, name: str, *, verb: str, live_only: bool = False) -> FoundJob:
        """Returns the newest run of that id or unique prefix, a live one first. Raises NotFoundError, …

        If several users have a job of that id, `name` must say whose: USER/JOB.
        """
        if not name:  # An unset variable of a shell must not mean any job.
            raise InvalidRequestError(
                f"cannot {verb} a job: an empty text names none; give a name that holdfast jobs shows"
            )
        # Live jobs first: all that have ended may take longer to list than a command waits.
        running = self._list(include_ended=False)
        meant, beginning = _meant(name, running)
        exact = [job for job in meant if job.is_live and job.report.job_id == beginning]
        is_one_users = live_only or beginning != name or self.own == self.answering
        if exact and is_one_users:
            return _only(exact, exact, name, verb)
        jobs = self._list(include_ended=True)
        if self._late:
            jobs = self._add_named(name)
        meant, beginning = _meant(name, jobs)
        for fits in (str.__eq__, str.startswith):
            matches = [job for job in meant if beginning and fits(job.report.job_id, beginning)]
            live = [job for job in matches if job.is_live]
            if matches and not live and live_only:
                self.silence.check(f"{verb} job {name}")
            if matches:
                return _only(live or matches, live if live and live_only else matches, name, verb)
            # One that has not said whether it knows the exact id: its jobs are not meant by a prefix.
            meant = [job for job in meant if job.supervisor not in self._failed]
        self.silence.check(f"{verb} job {name}")
        if live_only and not self.answering:
            raise NoSupervisorError(
                f"cannot {verb} job {name}: no supervisor is running; holdfast jobs shows what has run" + self._hint()
            )
        if self._late and not live_only:
            raise ExhaustedError(f"cannot {verb} job {name}: {'; '.join(self._missing())}; type the whole id")
        near = difflib.get_close_matches(name, [job.report.job_id for job in jobs], n=NEAR_MATCHES)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "see holdfast jobs"
        raise NotFoundError(f"cannot {verb} job {name}: there is no such job; {hint}" + self._hint())

    def tell_refusals(self) -> None:
        """Says which supervisors could not be asked, and which jobs not read, for lists that may be incomplete."""
        for refusal in self._refusals:
            self._say(refusal)

    def _hint(self) -> str:
        told = [*self._refusals, *self._missing()]
        return f" ({'; '.join(told)})" if told else ""

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


def _meant(name: str, jobs: list[FoundJob]) -> tuple[list[FoundJob], str]:
    """Returns the jobs that a name may mean, and how their ids begin: USER/JOB means only that user's."""
    user, between, job_id = name.partition(job_owners.BETWEEN)
    theirs = [job for job in jobs if between and job_owners.is_user(user, job.uid)]
    return (theirs, job_id) if theirs else (jobs, name)


def _why_late(socket_path: Path, error: ExhaustedError) -> str:
    return str(error).removeprefix(f"cannot ask the supervisor at {socket_path}: ").removesuffix("; try again")


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
