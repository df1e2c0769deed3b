"""What do people and programs ask of a job: submit, inspect, stop, restart, stacks; when is that refused?"""

from __future__ import annotations

import os
import signal as signals
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import msgspec

import supervisor
from supervisor.config import JobSpec
from supervisor.config.job_spec import OnSigterm
from supervisor.config.recorded_settings import recorded_settings
from supervisor.config.run_folder import check_log_dir, run_folder
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.core.facts import Evidence, HangLimits, JobState, RankView
from supervisor.core.node import node, node_messages
from supervisor.core.node_check_facts import CheckView, Health
from supervisor.core.session_state import JobSessions
from supervisor.core.stragglers.straggler_messages import Straggler
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import ENDED_JOBS_MAX, JobRecord
from supervisor.engine.known_stragglers import KnownStragglers
from supervisor.engine.node_stacks import STACKS_FOR_PEOPLE_S, NodeStacks
from supervisor.engine.recovery.expected_jobs import ExpectedJobs, with_stopped
from supervisor.errors import AlreadyExistsError, CordonedError, NotFoundError, NotNowError
from supervisor.ports.edges import Claims, Clock, Meetings, Peers, Workers
from supervisor.ports.reports import (
    CheckReport,
    JobNodeReport,
    JobReport,
    NodeReport,
    RankReport,
    RecordedEvent,
    SectionReport,
)

UNHEALTHY_KEPT_S = 24 * 3600.0  # since it was found, if its job has ended


class JobService:
    """Answers questions and requests; see ports.JobRequests. Runs on the event loop; answers show the current state."""

    def __init__(
        self,
        *,
        inbox: EngineInbox,
        engine_state: EngineState,
        stacks: NodeStacks,
        peers: Peers,
        jobs: dict[str, JobRecord],
        publisher: EventPublisher,
        workers: Workers,
        clock: Clock,
        claims: Claims,
        log_dir: str,
        prepare: Callable[[str], None],
        meetings: Meetings | None = None,
        keep: Callable[[str], bool] | None = None,
        slow: KnownStragglers,
    ) -> None:
        """`prepare` gets the id of a job before anything of it starts. `meetings` None: all jobs share one connection
        to other nodes, already open. `keep`: see Meetings.open."""
        self._inbox = inbox
        self._engine_state = engine_state
        self._stacks = stacks
        self._peers = peers
        self._jobs = jobs
        self._publisher = publisher
        self._workers = workers
        self._clock = clock
        self._claims = claims
        self._joining: dict[str, int] = {}  # since when (Unix ns) a job, not ours yet, looks for its other nodes
        self._node_name = engine_state.node_name
        self._log_dir = log_dir
        self._cordon_reason: str | None = None
        self._cordon = ""  # why an operator has cordoned the node
        self._cordon_asked = anyio.Event()
        self._ended: dict[str, anyio.Event] = {}
        self.expected = ExpectedJobs(engine_state.node_name)  # of the supervisor before this one
        self._started_at_ns = clock.unix_ns()
        self._meetings = meetings
        self._keep = keep
        self._prepare = prepare
        self._slow = slow

    async def submit(self, spec: JobSpec, environment: Mapping[str, str]) -> str:
        self._check_not_cordoned(spec.job_id)
        await self.expected.until_known(spec.job_id)
        if (since_ns := self._live_since_ns(spec.job_id)) is not None:
            raise AlreadyExistsError.of_live_job(spec.job_id, since_ns=since_ns, pid=os.getpid())
        check_log_dir(spec.log_dir)
        node, meets_at = (spec.nodes.name, spec.nodes.meets_at) if spec.nodes is not None else ("", "")
        submitted_at_ns = self._claims.take(spec.job_id, node=node, meets_at=meets_at)
        if self._meetings is not None and spec.nodes is not None:
            spec = await self._meet(self._meetings, spec, submitted_at_ns)
        self._forget_oldest()
        self._jobs.pop(spec.job_id, None)  # an earlier run is in the journal; the newest comes last
        job = JobRecord(
            spec=spec,
            environment=environment,
            submitted_at_ns=submitted_at_ns,
            log_dir=run_folder(spec.log_dir or self._log_dir, spec.job_id, submitted_at_ns),
        )
        self._jobs[spec.job_id] = job
        self._ended[spec.job_id] = anyio.Event()
        self._prepare(spec.job_id)
        rules = spec.rules()
        facts = msgspec.structs.replace(rules.facts, submitted_at_ms=job.submitted_at_ms)
        rules, checks = msgspec.structs.replace(rules, facts=facts), spec.health.plans(job.node_name(self._node_name))
        told = recorded_settings(spec)
        self._inbox.post(node_messages.JobSubmitted(rules, checks, spec.memory_rules(), job.node_name(""), told))
        self.begin(spec.job_id)
        return spec.job_id

    def _check_not_cordoned(self, job_id: str) -> None:
        if self._cordon_reason is not None:
            raise CordonedError(
                f"cannot start job {job_id}: node {self._node_name} is cordoned ({self._cordon_reason}); "
                f"try again once it takes jobs, or run holdfast uncordon {self._node_name}"
            )

    def _live_since_ns(self, job_id: str) -> int | None:
        """Returns since when a job of this id is live here (Unix ns); None: there is none."""
        if job_id in self._joining:
            return self._joining[job_id]
        job = self._jobs.get(job_id)
        if job is not None and (job.ended_at_ns is None or job.spawner is not None):
            return job.submitted_at_ns
        expected = self.expected.report(job_id)
        return expected.submitted_at_ns if expected is not None else None

    async def _meet(self, meetings: Meetings, spec: JobSpec, submitted_at_ns: int) -> JobSpec:
        """Returns the job as this node runs it, once the connection to its other nodes is open."""
        self._joining[spec.job_id] = submitted_at_ns
        try:
            met = await meetings.open(spec, self._keep)
            self._check_not_cordoned(spec.job_id)  # meeting took a while
        except BaseException:  # whatever it is, release the id and raise it again
            meetings.close(spec.job_id)
            self._claims.release(spec.job_id)
            raise
        finally:
            del self._joining[spec.job_id]
        return met

    async def meet_again(self, spec: JobSpec, kept: JobSessions | None) -> None:
        """Opens the connection of a job of the previous supervisor to its other nodes."""
        if self._meetings is not None and spec.nodes is not None:
            await self._meetings.reopen(spec, kept, self._keep)

    def begin(self, job_id: str) -> None:
        """Lets waiting messages of the job's other nodes in, now that the engine gets to know the job."""
        if self._meetings is not None:
            self._meetings.begin(job_id)

    def take_back(self, job: JobRecord) -> None:
        """Continues a job of the previous supervisor."""
        job_id = job.spec.job_id
        self._jobs[job_id] = job
        self._ended[job_id] = anyio.Event()
        self._prepare(job_id)
        self._publisher.changed(job)

    def came_back(self, job_id: str) -> None:
        """Notes that a job was taken over or has ended."""
        self.expected.settle(job_id)
        if job_id not in self._jobs:
            self._publisher.close(job_id)

    async def wait(self, job_id: str) -> JobRecord:
        """Returns the job once it has ended."""
        job = self._jobs[job_id]
        await self._ended[job_id].wait()
        return job

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Frees the id of a job once nothing of the job is left. See announcement_followers.py."""
        if isinstance(announcement, JobEnded):
            self._close(job)

    def _close(self, job: JobRecord) -> None:
        job_id = job.spec.job_id
        try:
            self._claims.release(job_id)
        finally:
            if self._meetings is not None:
                self._meetings.close(job_id)
            self._publisher.changed(job)
            self._publisher.close(job_id)
            self._ended[job_id].set()

    def jobs(self) -> Sequence[JobReport]:
        return [*self.expected.shown(), *(self._looked_at(job) for job in reversed(self._jobs.values()))]

    def job(self, job_id: str) -> JobReport | None:
        job = self._jobs.get(job_id)
        return self._looked_at(job) if job is not None else self.expected.report(job_id)

    def stop(
        self, job_id: str, *, reason: str, signal: int, grace_s: float | None = None, of_node: bool = False
    ) -> None:
        if self.expected.stop(job_id, reason, signal, grace_s, of_node=of_node):
            return
        job = self._live(job_id, "stop")
        leaves = of_node and job.spec.on_sigterm is OnSigterm.LEAVE and signal in (0, signals.SIGTERM)
        stop = node_messages.StopRequested(job.spec.job_id, reason, signal, grace_s, of_node=of_node, leaves=leaves)
        self._inbox.post(stop)

    def restart(self, job_id: str, *, reason: str) -> int:
        job = self._live(job_id, "restart")
        if (report := self.report(job)).state is JobState.STOPPING:
            raise NotNowError(
                f"cannot restart job {job_id}: it is ending ({report.reason}); start it again once it has ended"
            )
        self._inbox.post(node_messages.RestartRequested(job.spec.job_id, reason))
        return job.cycle + 1

    async def stacks(self, job_id: str, rank: int | None, budget_s: float = STACKS_FOR_PEOPLE_S) -> Evidence:
        job = self._live(job_id, "take stacks of")
        if rank is not None and not 0 <= rank - job.first_rank < job.spec.local_world_size:
            raise NotFoundError(
                f"cannot take stacks of rank {rank}: job {job_id} has ranks {job.first_rank} to "
                f"{job.first_rank + job.spec.local_world_size - 1}; choose one of those"
            )
        return await self._stacks.looked_at(job, rank=rank, budget_s=budget_s)

    def subscribe(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]:
        job = self._jobs.get(job_id)
        has_ended = job.ended_at_ns is not None if job is not None else job_id not in self.expected
        return self._publisher.watch(job_id, ended=has_ended)

    def node(self) -> NodeReport:
        return NodeReport(
            name=self._node_name,
            state=self._state(),
            reason=self._cordon_reason or "",
            job_ids=(*(each.job_id for each in self.expected.shown()), *self.live_jobs()),
            supervisor_pid=os.getpid(),
            version=supervisor.__version__,
            started_at_ns=self._started_at_ns,
            checks=self._checks_of_all_jobs(),
        )

    def cordon(self, reason: str) -> None:
        """Cordons this node. Running jobs continue; those on several nodes replace this node in their next cycle."""
        self._cordon_reason = reason or "by an operator"
        self._tell_cordon(self._cordon_reason)

    def uncordon(self) -> None:
        self._cordon_reason = None
        self._tell_cordon("")

    def leave_jobs(self, reason: str) -> tuple[str, ...]:
        """Asks that the live jobs on several nodes go on without this one. Returns them."""
        left = tuple(job_id for job_id in self.live_jobs() if self._jobs[job_id].spec.nodes is not None)
        for job_id in left:
            self._inbox.post(node_messages.LeaveRequested(job_id, reason))
        return left

    async def next_cordon(self) -> str:
        """Waits until somebody cordons or uncordons the node; returns why it is cordoned then, "" if it is not."""
        await self._cordon_asked.wait()
        return self._cordon

    def _tell_cordon(self, reason: str) -> None:
        self._cordon = reason
        self._cordon_asked.set()
        self._cordon_asked = anyio.Event()
        for job_id in self.live_jobs():
            if self._jobs[job_id].spec.nodes is not None:
                self._inbox.post(node_messages.CordonRequested(job_id, reason))

    async def end_all(self, reason: str) -> None:
        """Stops every job and returns once nothing of them is left. Takes no new jobs meanwhile."""
        self._cordon_reason = reason  # for the end of this process: nobody has cordoned the node
        await self.expected.stop_all(reason)
        live = self.live_jobs()
        for job_id in live:
            self.stop(job_id, reason=reason, signal=0, of_node=True)
        for job_id in live:
            await self._ended[job_id].wait()

    def stragglers(self, job_id: str) -> tuple[Straggler, ...]:
        """Returns the slow ranks of a job that this node leads."""
        job = self._jobs.get(job_id)
        return self._slow.of(job) if job is not None else ()

    def live_jobs(self) -> list[str]:
        return [job_id for job_id, job in self._jobs.items() if job.verdict is None]

    def report(self, job: JobRecord) -> JobReport:
        """Returns the job's current state."""
        view = node.view(self._engine_state.node_state, job.spec.job_id)
        if job.verdict is not None:
            state, reason = job.verdict.state, job.verdict.reason
        elif view is not None:
            state, reason = view.state, view.reason
        else:
            state, reason = JobState.PENDING, "waiting for the engine"
        checks = self._checks(view.checks) if view is not None else ()
        return JobReport(
            job_id=job.spec.job_id,
            state=state,
            submitted_at_ns=job.submitted_at_ns,
            cycle=job.cycle,
            iteration=job.shown.iteration,
            max_restarts=job.spec.restart.max_restarts,
            restarts_used=job.shown.restarts_used,
            reason=job.redacted(reason),
            nodes=(JobNodeReport(job.node_name(self._node_name), self._state(), checks=checks),),
            ranks=tuple(self._rank_report(job, rank) for rank in view.ranks) if view is not None else (),
            exit_code=job.verdict.exit_code if job.verdict is not None else None,
            ended_at_ns=job.ended_at_ns,
            log_dir=job.log_dir,
            command=job.shown_command,
            supervisor_pid=os.getpid(),
            stragglers=self._slow.of(job),
            script=view.script if view is not None and job.verdict is None else "",
        )

    def _state(self) -> str:
        return "ready" if self._cordon_reason is None else "cordoned"

    def _checks(self, found: Iterable[CheckView]) -> tuple[CheckReport, ...]:
        ahead_ns = self._clock.unix_ns() - int(self._clock.now_s() * 1e9)
        return tuple(
            CheckReport(
                each.finding.check,
                each.finding.health.value,
                each.finding.reason,
                each.finding.took_s,
                each.finding.subject,
                ahead_ns + int(each.found_at_s * 1e9),
            )
            for each in found
        )

    def _checks_of_all_jobs(self) -> tuple[CheckReport, ...]:
        """Returns the checks of live jobs: if several jobs have a result of the same check, the newest one counts.

        A job may end here because of an unhealthy result. It counts for a day, unless a newer check could tell more.
        """
        live: dict[tuple[str, str], CheckView] = {}
        known: dict[tuple[str, str], CheckView] = {}  # of checks that could tell
        for job_id, job in self._jobs.items():
            for each in node.checks(self._engine_state.node_state, job_id):
                name = each.finding.check, each.finding.subject
                could_tell = each.finding.health not in (Health.UNANSWERED, Health.SKIPPED)
                for found, counts in ((live, job.verdict is None), (known, could_tell)):
                    if counts and (name not in found or found[name].found_at_s < each.found_at_s):
                        found[name] = each
        since_s = self._clock.now_s() - UNHEALTHY_KEPT_S
        for name, each in known.items():
            is_newer = name in live and live[name].found_at_s < each.found_at_s
            if is_newer or (each.finding.health is Health.UNHEALTHY and each.found_at_s > since_s):
                live[name] = each
        return self._checks(live.values())

    def _looked_at(self, job: JobRecord) -> JobReport:
        """Returns the same for a person, who also wants to know which processes are stopped."""
        report = self.report(job)
        ranks = tuple(
            msgspec.structs.replace(each, state="stopped")
            if each.state in ("running", "hung") and each.pid is not None and self._stacks.is_stopped(each.pid)
            else each
            for each in report.ranks
        )
        report = msgspec.structs.replace(report, ranks=ranks)
        pid = job.spawner.pid if job.spawner is not None and job.verdict is None else 0
        if pid and self._stacks.is_stopped(pid):
            return with_stopped(report, pid, node=job.node_name(self._node_name))
        return report

    def _rank_report(self, job: JobRecord, rank: RankView) -> RankReport:
        now_s = self._clock.now_s()
        progress, executed_at_s = None, None
        limit_s = job.spec.auto_heartbeat_s
        if job.verdict is None and rank.exit is None and (rank.limits is not None or limit_s is not None):
            progress = self._workers.read_progress(job.spec.job_id, job.cycle, rank.local_rank)
            executed_at_s = progress.executed_at_s if progress is not None else None
            progress = (progress or rank.progress) if rank.limits is not None else None
        limits = dict(rank.limits.sections) if rank.limits is not None else {}
        heartbeat_at_s = progress.heartbeat_at_s if progress is not None else None
        hang_limits = rank.limits or HangLimits(heartbeat_s=None)
        heartbeat_limit_s = hang_limits.initial_heartbeat_s if heartbeat_at_s is None else hang_limits.heartbeat_s
        return RankReport(
            rank=rank.rank,
            local_rank=rank.local_rank,
            node=job.node_name(self._node_name),
            state=rank.state,
            pid=rank.pid,
            heartbeat_age_s=max(0.0, now_s - heartbeat_at_s) if heartbeat_at_s is not None else None,
            heartbeat_limit_s=heartbeat_limit_s,
            main_thread_age_s=max(0.0, now_s - executed_at_s) if executed_at_s is not None else None,
            main_thread_limit_s=limit_s if executed_at_s is not None and not rank.in_call else None,
            sections=tuple(
                SectionReport(name, max(0.0, now_s - opened_at_s), limits.get(name))
                for name, opened_at_s in (progress.open_sections if progress is not None else ())
            ),
            cycle_started_at_ns=job.running.started_at_ns if job.running is not None else None,
            exit_code=rank.exit.code if rank.exit is not None else None,
            exit_signal=rank.exit.signal if rank.exit is not None else None,
        )

    def _live(self, job_id: str, verb: str) -> JobRecord:
        self.expected.check_not_expected(job_id, verb)
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"cannot {verb} job {job_id}: this supervisor has no such job; see holdfast jobs")
        if job.verdict is not None:
            raise NotNowError(
                f"cannot {verb} job {job_id}: it has ended ({job.verdict.state}); holdfast jobs shows what runs"
            )
        return job

    def _forget_oldest(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.verdict is not None]
        for job_id in ended[: max(0, len(ended) - ENDED_JOBS_MAX)]:
            del self._jobs[job_id]
            del self._ended[job_id]
