"""A job service whose jobs a test controls, and a server for it in a separate process."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from msgspec.structs import replace

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import Evidence, JobState, StackGroup
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.journal_reader import report_from_json
from supervisor.edges.operators.control_api import ControlApi, SecureListener
from supervisor.edges.operators.control_gate import ControlGate
from supervisor.errors import HoldfastError, NoAnswerError, NotFoundError, NotNowError
from supervisor.ports.job_requests import JobHistory, OpenLogs, RendezvousRequest
from supervisor.ports.reports import (
    JobNodeReport,
    JobReport,
    LogBytes,
    NodeReport,
    RankReport,
    RecordedEvent,
    SectionReport,
)


def running(
    job_id: str = "train-7f3a", *, submitted_at_ns: int = 1_000, ranks: int = 4, log_dir: str = ""
) -> JobReport:
    return JobReport(
        job_id=job_id,
        state=JobState.RUNNING,
        submitted_at_ns=submitted_at_ns,
        cycle=2,
        max_restarts=3,
        restarts_used=1,
        reason=f"all {ranks} ranks run",
        nodes=(JobNodeReport("n0", "ready", 0),),
        ranks=tuple(
            RankReport(
                rank, rank, "n0", "running", pid=800 + rank, heartbeat_age_s=0.25, heartbeat_limit_s=45.0,
                sections=(SectionReport("step", 0.5, 3.0),), cycle_started_at_ns=submitted_at_ns,
            )
            for rank in range(ranks)
        ),
        log_dir=log_dir,
        command=("train.py", "--lr", "0.1", "--api-key=hunter2"),
        supervisor_pid=4711,
    )  # fmt: skip


class FakeJobService:
    """A job service for tests; see ports/job_requests.py."""

    def __init__(self, *reports: JobReport, node_name: str = "n0", journal: Journal | None = None) -> None:
        self.reports = {report.job_id: report for report in reports}
        self.calls: list[tuple[object, ...]] = []
        self.submitted: list[tuple[JobSpec, dict[str, str]]] = []
        self.coming_back: dict[str, anyio.Event] = {}
        self.watchers: list[MemoryObjectSendStream[RecordedEvent]] = []
        self._node = NodeReport(node_name, "ready", supervisor_pid=4711, version="0.1.0", started_at_ns=1_000)
        self._journal = journal
        self.leader_events: list[RecordedEvent] | None = None  # None: this node leads
        self.leader_fails: HoldfastError | None = None  # after these events
        self.output_elsewhere: dict[str, list[LogBytes]] = {}  # by node; none: it does not answer
        self.silent_nodes: set[str] = set()  # These do not answer any more after their output so far.
        self.output_later: dict[str, list[LogBytes]] = {}  # of a node that closes its first reader
        self.other_nodes: list[NodeReport] = []
        self._sequence = dict.fromkeys(self.reports, 0)
        self.looks = 0
        self.waited_for: list[tuple[str, str]] = []
        self.cordon_ends = False  # this is a private supervisor
        self.ends_together = False  # the end of one job is the end of all

    async def submit(self, spec: JobSpec, environment: Mapping[str, str]) -> str:
        self.submitted.append((spec, dict(environment)))
        return spec.job_id

    def jobs(self) -> Sequence[JobReport]:
        return list(self.reports.values())

    def job(self, job_id: str) -> JobReport | None:
        return self.reports.get(job_id)

    async def look(self, job_id: str, *, this_node: bool = False) -> JobReport | None:
        if job_id in self.coming_back:
            await self.coming_back[job_id].wait()
        self.looks += not this_node
        report = self.job(job_id)
        if report is not None and this_node:
            nodes = tuple(node for node in report.nodes if node.name not in self.output_elsewhere)
            return replace(report, nodes=nodes)
        return report

    async def look_at_all(self) -> Sequence[JobReport]:
        return self.jobs()

    async def until_left(self, job_id: str, node: str) -> None:
        self.waited_for.append((job_id, node))

    async def until_complete(self, job_id: str) -> None:
        """Everything is here."""

    def events_elsewhere(
        self, job_id: str, *, after_sequence: int, follow: bool
    ) -> AsyncGenerator[RecordedEvent] | None:
        if self.leader_events is None or self.reports[job_id].state.has_ended:
            return None
        return self._leaders(self.leader_events[after_sequence:])

    async def _leaders(self, events: Sequence[RecordedEvent]) -> AsyncGenerator[RecordedEvent]:
        for event in events:
            yield event
        if self.leader_fails is not None:
            raise self.leader_fails

    def logs_elsewhere(self, job: JobReport) -> Mapping[str, OpenLogs]:
        return {node.name: partial(self._output, node.name) for node in job.nodes if node.name in self.output_elsewhere}

    async def _output(
        self, name: str, *, rank: int | None, cycle: int | None, tail_lines: int, first_cycle: int, follow: bool
    ) -> AsyncGenerator[LogBytes]:
        output = self.output_elsewhere[name][-tail_lines:]
        for piece in output:
            if rank in (None, piece.rank) and piece.cycle >= first_cycle:
                yield piece
        if not output or name in self.silent_nodes:
            raise NoAnswerError(f"cannot ask node {name}: no answer within 5 s")
        if name in self.output_later:
            self.output_elsewhere[name] = self.output_later.pop(name)
            raise NotFoundError("cannot show more output: its reader was closed; ask again from the start")

    async def lead_rendezvous(self, rendezvous: RendezvousRequest) -> bool:
        self.calls.append(("lead", rendezvous))
        return rendezvous.job_id == "torch"

    def stop(
        self, job_id: str, *, reason: str, signal: int, grace_s: float | None = None, of_node: bool = False
    ) -> None:
        self.calls.append(("stop", job_id, reason, signal, grace_s))
        for each in list(self.reports) if self.ends_together else [job_id]:
            self.end(each, JobState.STOPPED, reason)

    def restart(self, job_id: str, *, reason: str) -> int:
        self.calls.append(("restart", job_id, reason))
        return self.reports[job_id].cycle + 1

    async def stacks(self, job_id: str, rank: int | None) -> Evidence:
        if rank == 99:
            raise NotFoundError(f"cannot take stacks of rank 99: job {job_id} has ranks 0 to 3")
        if rank == 98:
            raise RuntimeError("secret detail")
        groups = (
            StackGroup((2,), "main (train.py:10)\n  load (data.py:88)"),
            StackGroup((0, 1, 3), "main (train.py:12)\n  all_reduce (c10d.py:12)"),
        )
        return Evidence(groups=groups, notes=("rank 5: has exited",), source="py-spy")

    @contextlib.asynccontextmanager
    async def subscribe(self, job_id: str) -> AsyncGenerator[AsyncIterator[RecordedEvent]]:
        send, receive = anyio.create_memory_object_stream[RecordedEvent](4)
        if job_id in self.reports and not self.reports[job_id].state.has_ended:
            self.watchers.append(send)
        else:
            send.close()
        try:
            async with receive:
                yield receive
        finally:
            if send in self.watchers:
                self.watchers.remove(send)  # a watcher that has gone gets nothing
            send.close()

    def node(self) -> NodeReport:
        return self._node

    async def nodes(self) -> Sequence[NodeReport]:
        return [self._node, *self.other_nodes]

    async def set_cordon(self, node: str, *, cordoned: bool, reason: str = "", leaves: bool = False) -> NodeReport:
        if node not in ("", self._node.name):
            verb = "cordon" if cordoned else "uncordon"
            raise NotFoundError(
                f"cannot {verb} node {node}: it is not among the nodes known here; choose one of {self._node.name}"
            )
        if cordoned and self._node.state == "cordoned":
            raise NotNowError("cannot cordon n0: it is cordoned")
        self._node = replace(self._node, state="cordoned" if cordoned else "ready", reason=reason)
        ends = cordoned and self.cordon_ends
        return replace(self._node, leaves=("train",) if leaves else (), cordon_ends=ends, job_ids=tuple(self.reports))

    def publish(
        self, job_id: str, kind: str = "worker_exited", reason: str = "because", lost: bool = False, rank: int = 1
    ) -> None:
        """Records an event; `lost`: watchers are behind and do not get it."""
        self._sequence[job_id] += 1
        number = self._sequence[job_id]
        event = RecordedEvent(job_id, number, 1_000_000_000 * number, kind, reason, 2, 0, "n0", rank, (("code", "9"),))
        if self._journal is not None:
            self._journal.record(event)
        for watcher in [] if lost else self.watchers:
            with contextlib.suppress(anyio.BrokenResourceError):  # it is about to leave
                watcher.send_nowait(event)

    def silence(self, job_id: str, age_s: float) -> None:
        """Rank 2 sends no more heartbeats, which is no event."""
        job = self.reports[job_id]
        ranks = [replace(each, heartbeat_age_s=age_s) if each.rank == 2 else each for each in job.ranks]
        self.reports[job_id] = replace(job, ranks=tuple(ranks))

    def end(self, job_id: str, state: JobState, reason: str) -> None:
        self.publish(job_id, "job_ended", reason)
        self.reports[job_id] = replace(
            self.reports[job_id], state=state, reason=reason, ended_at_ns=10**12, exit_code=0, ranks=()
        )
        if self._journal is not None:
            self._journal.save(self.reports[job_id])
        for watcher in self.watchers:
            watcher.close()


class NoHistory:
    """A history without jobs; see ports.JobHistory."""

    def jobs(self, *, below: tuple[int, str] | None = None) -> Iterator[JobReport]:
        return iter(())

    def job(self, job_id: str) -> JobReport | None:
        return None

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> Sequence[RecordedEvent]:
        return []

    def events_in_memory(self, job_id: str, *, after_sequence: int, limit: int) -> Sequence[RecordedEvent] | None:
        return None


@contextlib.asynccontextmanager
async def serving(
    job_service: FakeJobService,
    socket_path: Path,
    history: JobHistory | None = None,
    listener: SecureListener | None = None,
) -> AsyncGenerator[None]:
    api = ControlApi(job_service, history or NoHistory())
    async with anyio.create_task_group() as tasks:
        if listener is not None:
            await tasks.start(api.serve_tcp, listener)
        await tasks.start(ControlGate(socket_path=socket_path, load=lambda: api, eager=True).run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


async def _main(socket_path: Path, state_dir: Path, reports: list[JobReport], node_name: str) -> None:
    """Serves. The end of stdin ends the process.

    Its lines: "publish JOB [RANK]", "silence JOB", "end JOB", "record JOB" (its end, of which no watcher learns),
    "forget" (a cordon ends with it) and "together".
    """
    journal = Journal(state_dir, on_alarm=_say)
    journal.start()
    job_service = FakeJobService(*reports, node_name=node_name, journal=journal)
    for report in reports:
        journal.save(report)
        job_service.publish(report.job_id, "cycle_started", "cycle 2 starts with 4 ranks")
    journal.flush(10)
    async with serving(job_service, socket_path, journal):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        with anyio.open_signal_receiver(signal.SIGTERM):
            async for line in anyio.wrap_file(sys.stdin):
                verb, job_id, rank, *_ = [*line.split(), "", "", ""]
                if verb == "publish":
                    job_service.publish(job_id, reason="a line from the test", rank=int(rank or 1))
                elif verb == "silence":
                    job_service.silence(job_id, 30.0)
                elif verb == "forget":
                    job_service.cordon_ends = True
                elif verb == "together":
                    job_service.ends_together = True
                elif verb == "record":
                    journal.save(replace(job_service.reports[job_id], state=JobState.SUCCEEDED, ended_at_ns=10**12))
                    journal.flush(10)
                elif verb == "end":
                    job_service.end(job_id, JobState.SUCCEEDED, "all ranks exited with code 0")
                sys.stdout.write("done\n")
                sys.stdout.flush()
    journal.close()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    anyio.run(
        _main,
        Path(given["socket"]),
        Path(given["state_dir"]),
        [report_from_json(json.dumps(each)) for each in given["reports"]],
        given.get("node", "n0"),
        backend_options={"use_uvloop": True},
    )
