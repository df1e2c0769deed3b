"""What do a spawner's messages mean for the machines?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from holdfast_wire import spawner_link as link

from supervisor.config.job_spec import SAFETY_FACTOR
from supervisor.core.facts import JobEvent, WorkerExit
from supervisor.core.node import node_messages
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.ports.edges import Clock, Workers

NS_PER_S = 1_000_000_000

_log = logging.getLogger("holdfast.jobs")


def cycle_log_closed(message: link.CycleLogClosed) -> JobEvent:
    """Returns the event that this node writes no more to the file of the cycle."""
    lost = f", but {message.lost_lines} lines of it are lost: {message.reason}" if message.lost_bytes else ""
    return JobEvent(
        "cycle_log_closed",
        f"the output of cycle {message.cycle} is {'' if lost else 'complete '}in {message.path}{lost}",
        cycle=message.cycle,
        details=(
            ("path", message.path),
            ("written_bytes", str(message.written_bytes)),
            ("lost_lines", str(message.lost_lines)),
            ("lost_bytes", str(message.lost_bytes)),
        ),
    )


def _seen(job_id: str, message: link.RankStopped | link.RankContinued | link.FirstOutput) -> node_messages.PlainReport:
    """Returns the event for what the spawner has seen of a rank."""
    cycle, local_rank, at_s = message.cycle, message.local_rank, message.at_ns / NS_PER_S
    match message:
        case link.RankStopped(pid=pid, signal=signal):
            return node_messages.RankStopped(job_id, cycle, local_rank, pid, signal, at_s)
        case link.RankContinued():
            return node_messages.RankContinued(job_id, cycle, local_rank, at_s)
        case link.FirstOutput():
            return node_messages.RankPrinted(job_id, cycle, local_rank, at_s)


def why_unattended(message: link.FromSpawner) -> str:
    """Returns why the spawner ended a worker by itself; "" if it did not."""
    if not isinstance(message, link.Exited) or message.unattended_s is None:
        return ""
    return f"no supervisor came back within --supervisor-return-timeout ({message.unattended_s:g} s)"


class SpawnerReports:
    """Decodes the messages of one job's spawner; keeps the record's pids up to date."""

    def __init__(
        self, job: JobRecord, number: int, *, workers: Workers, publisher: EventPublisher, clock: Clock
    ) -> None:
        self._job = job
        self._number = number  # the spawner's number within the job
        self._workers = workers
        self._publisher = publisher
        self._clock = clock
        self._silences: dict[int, tuple[float, int]] = {}  # by cycle: the longest of a main thread, and its rank
        self._unknown_told = False

    def read(self, message: link.FromSpawner) -> Iterator[node_messages.Event]:
        """Yields the events that follow from a message, in order."""
        job = self._job
        job_id = job.spec.job_id
        match message:
            case link.Ready():
                job.spawner_reason = message.method_reason
                job.cgroups |= {message.cgroup} - {""}
                if not message.refusal:
                    self._publisher.publish(job, JobEvent("spawner_ready", message.method_reason, cycle=job.cycle))
                self._tell_slower(message.lost)
                yield node_messages.SpawnerReady(
                    job_id,
                    self._number,
                    starts_workers=message.method != "adopt",
                    refusal=message.refusal,
                    refusal_code=message.refusal_code,
                )
            case link.StoreReady():
                yield node_messages.StoreReady(job_id, message.cycle, message.host, message.port)
            case link.StoreFailed() | link.StoreExited():
                yield node_messages.StoreFailed(job_id, message.cycle, message.reason)
            case link.Spawned():
                if job.runs(message.cycle):
                    job.pids[message.local_rank] = message.pid
                self._workers.expect(job_id, message.cycle, message.local_rank, message.pid)
                yield node_messages.WorkerSpawned(job_id, message.cycle, message.local_rank, message.pid)
            case link.SpawnFailed():
                yield node_messages.SpawnFailed(
                    job_id, message.cycle, message.local_rank, message.reason, message.exit_code
                )
            case link.Exited():
                if job.runs(message.cycle):
                    if job.pids.get(message.local_rank, message.pid) != message.pid:
                        return  # of the process that this rank's has replaced: its spawner has reported it again
                    job.pids.pop(message.local_rank, None)
                self._note_silence(message)
                yield node_messages.WorkerExited(job_id, message.cycle, self._exit(message))
            case link.RankStopped() | link.RankContinued() | link.FirstOutput():
                yield _seen(job_id, message)
            case link.Emptied():
                self._tell_silence(message.cycle)
                yield node_messages.WorkersEmptied(job_id, message.cycle, message.stuck_pids)
            case link.OutputDropped() | link.CycleLogClosed() | link.Learned() | link.Unknown():
                self._publish(message)
            case link.Ended() | link.Kept() | link.WelcomeBack() | link.HeldPages():
                return

    def _publish(self, message: link.OutputDropped | link.CycleLogClosed | link.Learned | link.Unknown) -> None:
        """Publishes what is only for people."""
        job = self._job
        match message:
            case link.OutputDropped():
                self._publisher.publish(job, self._dropped(message))
            case link.CycleLogClosed():
                self._publisher.publish(job, cycle_log_closed(message))
            case link.Learned():
                self._publisher.publish(job, JobEvent("preload_learned", message.reason, cycle=job.cycle))
                self._tell_slower(message.lost)
            case link.Unknown(kind):
                if not self._unknown_told:
                    self._unknown_told = True
                    why = "skipped a message of its spawner, which is newer"
                    _log.warning("job %s: %s: %.64r", job.spec.job_id, why, kind)

    def _dropped(self, message: link.OutputDropped) -> JobEvent:
        """Names the rank only in the running cycle: this node may have had other ranks in an earlier one."""
        job, rank, of = self._job, None, "output of a rank"
        if message.local_rank < 0:
            of = "the log of the cycle"
        elif job.runs(message.cycle):
            rank = job.first_rank + message.local_rank
            of = f"output of rank {rank}"
        reason = f"{message.dropped_bytes} bytes of {of} were not kept: {message.reason}"
        return JobEvent("output_dropped", reason, message.cycle if message.cycle >= 0 else job.cycle, rank)

    def _note_silence(self, message: link.Exited) -> None:
        if message.silence_longest_s is not None:
            found = (message.silence_longest_s, self._job.first_rank + message.local_rank)
            self._silences[message.cycle] = max(found, self._silences.get(message.cycle, found))

    def _tell_silence(self, cycle: int) -> None:
        """Reports, once per cycle, what helps people to choose the limit of main threads."""
        longest_s, rank = self._silences.pop(cycle, (0.0, 0))
        limit_s = self._job.spec.auto_heartbeat_s
        if longest_s and limit_s is not None:
            reason = (
                f"the longest time without Python code was {longest_s:.1f} s, of rank {rank} (limit {limit_s:g} s); "
                f"{SAFETY_FACTOR:g} times that is {SAFETY_FACTOR * longest_s:.0f} s"
            )
            details = (("longest_s", f"{longest_s:.3f}"), ("limit_s", f"{limit_s:g}"))
            self._publisher.publish(self._job, JobEvent("main_threads_measured", reason, cycle, rank, details))

    def _tell_slower(self, sentence: str) -> None:
        """Reports, once per job, what each worker loads again unnecessarily, and the remedy."""
        if sentence and not self._job.slower_told:
            self._job.slower_told = True
            self._publisher.publish(self._job, JobEvent("preload_lost", sentence, cycle=self._job.cycle))

    def _exit(self, message: link.Exited) -> WorkerExit:
        job = self._job
        return WorkerExit(
            local_rank=message.local_rank,
            rank=job.first_rank + message.local_rank,
            pid=message.pid,
            code=message.code,
            signal=message.signal,
            at_s=message.at_ns / NS_PER_S,
            core_dumped=message.core_dumped,
            out_of_memory=message.out_of_memory,
            error=why_unattended(message) or message.error,
            error_at_unix_s=message.error_at_unix_s,
            error_at_s=self._own_time_s(message.error_at_unix_s),
            unattended=message.unattended_s is not None,
        )

    def _own_time_s(self, unix_s: float | None) -> float | None:
        """Returns the moment on the clock that nobody sets."""
        if unix_s is None:
            return None
        return unix_s - self._clock.unix_ns() / NS_PER_S + self._clock.now_s()
