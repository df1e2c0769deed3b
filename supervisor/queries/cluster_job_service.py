"""How do people ask about jobs on several nodes and get the same answers on each node?

The leader asks all nodes and merges their answers; the others ask the leader. Questions about this node alone go to the
service (job_service.py). The machines wait for nothing here, and a node that does not answer is shown as last heard.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import msgspec

from supervisor.core.cluster import hang_evidence
from supervisor.core.facts import Evidence
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.engine.node_stacks import STACKS_FOR_PEOPLE_S
from supervisor.errors import ExhaustedError, HoldfastError, InvalidRequestError, NoAnswerError, NotFoundError
from supervisor.ports.job_requests import JobHistory, OpenLogs, RendezvousRequest
from supervisor.ports.questions import (
    LEADER,
    Answer,
    CloseLogs,
    Done,
    Events,
    NodeRequests,
    Part,
    Question,
    ReadEvents,
    ReadLogs,
    SetCordon,
    ShowPart,
    ShowStacks,
    ShowWhole,
    Stacks,
    TellSections,
    TellUpdate,
    UpdateTaken,
    Whole,
)
from supervisor.ports.reports import JobReport, NodeReport, RecordedEvent
from supervisor.ports.timed_waits import pause
from supervisor.queries import remote_logs
from supervisor.queries.cluster_view import ClusterView
from supervisor.queries.drained_nodes import Departures
from supervisor.queries.job_service import JobService

NODE_ANSWER_S = 1.0  # a node that takes longer to answer is shown as last heard
LEADER_ANSWER_S = NODE_ANSWER_S + 1.0
ORDER_ANSWER_S = 5.0
STACKS_MARGIN_S = 1.5
EVENTS_AT_ONCE = 200
SLOW_SHOWN_MAX = 3  # sentences about slow ranks of one node, in the list of nodes
EVENTS_WAIT_S = 20.0  # how long a follower's question waits for an event
EVENTS_WAIT_MAX_S = 60.0
LAST_EVENTS_S = 3.0  # that a reader waits for the last news of other nodes

LogReader = Callable[[str, JobReport, ReadLogs | CloseLogs], Awaitable[Answer]]
TakeSections = Callable[[str, str, TellSections], Answer]  # gets the job and the node


class ClusterJobService:
    """Answers questions about all nodes; see ports.JobRequests. Runs on the event loop."""

    def __init__(
        self,
        *,
        job_service: JobService,
        view: ClusterView,
        node_requests: NodeRequests,
        history: JobHistory,
        take_sections: TakeSections,
        read_logs: LogReader | None = None,
        keep_cordon: Callable[[str], Awaitable[None]] | None = None,
        cordon_ends: bool = False,
        lead_for_torchrun: Callable[[RendezvousRequest], Awaitable[bool]] | None = None,
        until_told: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`read_logs` None: no other node reads them. `keep_cordon` gets why the node is cordoned, "" if it is not;
        None: it is not kept here. `cordon_ends`: this supervisor ends with its job, and the cordon with it.
        `lead_for_torchrun` None: it is not done here. `until_told` waits for the last events of a job's other nodes;
        None: there are none."""
        self._job_service = job_service
        self._view = view
        self._node_requests = node_requests
        self._history = history
        self._take_sections = take_sections
        self._read_logs = read_logs
        self._keep_cordon = keep_cordon
        self._cordon_ends = cordon_ends
        self._lead_for_torchrun = lead_for_torchrun
        self._until_told = until_told
        self.submit = job_service.submit
        self.jobs = job_service.jobs
        self.job = job_service.job
        self.stop = job_service.stop
        self.restart = job_service.restart
        self.node = job_service.node
        self.cordon = job_service.cordon
        self.uncordon = job_service.uncordon
        self._departures = Departures(job_service, node_requests)

    def subscribe(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]:
        return self._job_service.subscribe(job_id)

    # --- looking ---------------------------------------------------------------------------------------------------

    async def look(self, job_id: str, *, this_node: bool = False) -> JobReport | None:
        await self._job_service.expected.until_known(job_id)
        own = self._job_service.job(job_id)
        if own is None or this_node or not self._view.is_shared(job_id):
            return own
        report, _ = await self._look(job_id)
        own = self._job_service.job(job_id) or own
        return msgspec.structs.replace(
            report, submitted_at_ns=own.submitted_at_ns, log_dir=own.log_dir, supervisor_pid=own.supervisor_pid
        )

    async def until_left(self, job_id: str, node: str) -> None:
        if self._view.is_shared(job_id) and not self._has_ended(job_id):
            await self._departures.until_left(job_id, node)

    async def look_at_all(self) -> Sequence[JobReport]:
        found = {report.job_id: report for report in self._job_service.jobs()}

        async def look(job_id: str) -> None:
            found[job_id] = await self.look(job_id) or found[job_id]

        async with anyio.create_task_group() as tasks:
            for job_id, report in list(found.items()):
                if not report.state.has_ended and self._view.is_shared(job_id):
                    tasks.start_soon(look, job_id)
        return list(found.values())

    async def nodes(self) -> Sequence[NodeReport]:
        own = self._job_service.node()
        found: dict[str, NodeReport] = {}
        slow: dict[str, list[str]] = {}
        for job_id, (report, nodes) in (await self._look_at_shared()).items():
            for straggler in report.stragglers:
                name = own.name if straggler.node == self._view.own_name(job_id) else straggler.node
                slow.setdefault(name, []).append(straggler.reason)
            left = {part.name: part.reason for part in report.nodes if part.state == "left"}
            for each in nodes:
                shown = _as_left(each, job_id, left[each.name]) if each.name in left else each
                is_away = shown.state in ("lost", "left")
                if each.name != self._view.own_name(job_id) and not (is_away and each.name in found):
                    found[each.name] = shown
        found |= {own.name: own}
        for job_id in self._job_service.live_jobs():
            if not self._view.is_shared(job_id):
                slow.setdefault(own.name, []).extend(each.reason for each in self._job_service.stragglers(job_id))
        return [_with_reasons(found[name], slow.get(name, [])) for name in sorted(found)]

    async def _look_at_shared(self) -> dict[str, tuple[JobReport, tuple[NodeReport, ...]]]:
        """Returns live jobs with other nodes, asking all at once: no job waits for the nodes of another."""
        found: dict[str, tuple[JobReport, tuple[NodeReport, ...]]] = {}

        async def look(job_id: str) -> None:
            found[job_id] = await self._look(job_id)

        async with anyio.create_task_group() as tasks:
            for job_id in self._job_service.live_jobs():
                if self._view.is_shared(job_id):
                    tasks.start_soon(look, job_id)
        return found

    async def _look(self, job_id: str) -> tuple[JobReport, tuple[NodeReport, ...]]:
        if self._node_requests.leads(job_id):
            await self._ask_nodes(job_id)
            return self._with_outage(self._view.merged(job_id)), self._view.nodes(job_id)
        if not self._has_ended(job_id):
            try:
                whole = await self._node_requests.ask(job_id, LEADER, ShowWhole(), timeout_s=LEADER_ANSWER_S)
            except NoAnswerError as error:
                report, nodes = self._view.last_whole(job_id)
                report = self._with_outage(report)
                is_known = any(each.name != self._view.own_name(job_id) for each in nodes)
                others = "shown as they were" if is_known else "not shown"
                reason = f"{report.reason} ({error}; the other nodes are {others})"
                return msgspec.structs.replace(report, reason=reason), nodes
            if isinstance(whole, Whole):
                self._view.hear_whole(job_id, whole)
                return whole.job, whole.nodes
        return self._view.last_whole(job_id)

    def _with_outage(self, report: JobReport) -> JobReport:
        outage = "" if report.state.has_ended else self._node_requests.outage(report.job_id)
        return msgspec.structs.replace(report, reason=f"{report.reason}; {outage}") if outage else report

    async def _ask_nodes(self, job_id: str) -> None:
        found = self._view.roster(job_id)
        if found is None or self._has_ended(job_id):
            return

        async def ask(name: str) -> None:
            try:
                answer = await self._node_requests.ask(job_id, name, ShowPart(), timeout_s=NODE_ANSWER_S)
            except HoldfastError:
                self._view.miss(job_id, name)
            else:
                if isinstance(answer, Part):
                    self._view.hear(job_id, name, answer)

        own_name = self._view.own_name(job_id)
        async with anyio.create_task_group() as tasks:
            for node in found.nodes:
                if node.name != own_name and node.state != "lost":
                    tasks.start_soon(ask, node.name)

    def _has_ended(self, job_id: str) -> bool:
        own = self._job_service.job(job_id)
        return own is None or own.state.has_ended

    # --- acting ----------------------------------------------------------------------------------------------------

    async def stacks(self, job_id: str, rank: int | None) -> Evidence:
        report = await self.look(job_id) if self._view.is_shared(job_id) else None
        if report is None:
            return await self._job_service.stacks(job_id, rank)
        ranks = {each.rank: each for each in report.ranks}
        unheard = ", ".join(
            each.name for each in report.nodes if each.heard_at_ns and each.group_rank is not None and not each.ranks
        )
        if rank is not None and rank not in ranks and unheard:
            raise NoAnswerError(f"cannot take stacks of rank {rank}: no answer of {unheard} yet; try again in a moment")
        if rank is not None and rank not in ranks:
            have = f"has ranks {min(ranks)} to {max(ranks)}" if ranks else "runs no ranks at this moment"
            raise NotFoundError(f"cannot take stacks of rank {rank}: job {job_id} {have}; choose one that runs")
        wanted = [each for each in ranks.values() if rank in (None, each.rank)]
        by_node: dict[str, list[int]] = {}
        for each in wanted:
            by_node.setdefault(each.node, []).append(each.rank)
        parts = [Evidence(notes=(f"no answer of {unheard} yet",))] if unheard and rank is None else []
        lost = {each.name for each in report.nodes if each.lost_at_ns is not None}

        async def ask(node: str, of: list[int]) -> None:
            try:
                if node in lost:
                    raise NoAnswerError("it is lost")
                parts.append(await self._node_stacks(job_id, node, rank))
            except HoldfastError as error:
                plural = "s" if len(of) > 1 else ""
                note = f"rank{plural} {', '.join(map(str, of))} of node {node}: {error}"
                parts.append(Evidence(notes=(note,)))

        async with anyio.create_task_group() as tasks:
            for node, of in by_node.items():
                tasks.start_soon(ask, node, of)
        return hang_evidence.merged(tuple(parts)) if parts else Evidence(notes=("no rank runs at this moment",))

    async def _node_stacks(self, job_id: str, node: str, rank: int | None) -> Evidence:
        if node == self._view.own_name(job_id):
            return await self._job_service.stacks(job_id, rank)
        question = ShowStacks(STACKS_FOR_PEOPLE_S, rank)
        timeout_s = STACKS_FOR_PEOPLE_S + STACKS_MARGIN_S
        answer = await self._node_requests.ask(job_id, node, question, timeout_s=timeout_s)
        assert isinstance(answer, Stacks), "the codec lets nothing else through as an answer to ShowStacks"
        return answer.evidence

    async def set_cordon(self, node: str, *, cordoned: bool, reason: str = "", leaves: bool = False) -> NodeReport:
        request = SetCordon(cordoned, reason, leaves)
        own = {self._view.own_name(job_id) for job_id in self._job_service.live_jobs()} | {
            self._job_service.node().name
        }
        if node in ("", *own):
            return await self._set_own_cordon(node, request)
        known, gone = own, ""
        for job_id, (report, _) in (await self._look_at_shared()).items():
            for each in report.nodes:
                if each.name != node:
                    continue
                if each.state == "left":
                    gone = "it has left the job" + ("" if cordoned else "; type holdfast uncordon on that node")
                elif each.lost_at_ns is not None:
                    gone = each.reason
                else:
                    answer = await self._node_requests.ask(job_id, node, request, timeout_s=ORDER_ANSWER_S)
                    assert isinstance(answer, Done), "the codec lets nothing else through as an answer to SetCordon"
                    return answer.node
            known |= {each.name for each in report.nodes}
        verb = "drain" if leaves else "cordon" if cordoned else "uncordon"
        if gone:
            raise NotFoundError(f"cannot {verb} node {node}: {gone}; holdfast nodes shows which are there")
        names = ", ".join(sorted(known))
        raise NotFoundError(
            f"cannot {verb} node {node[:80]}: it is not among the nodes known here; choose one of {names}"
        )

    async def _set_own_cordon(self, name: str, request: SetCordon) -> NodeReport:
        """Cordons this node. `name`: its name in the job for which that is requested; "": its own name."""
        if request.cordoned:
            self._job_service.cordon(request.reason)
        else:
            self._job_service.uncordon()
        left = self._job_service.leave_jobs(request.reason) if request.leaves else ()
        cordon_ends = request.cordoned and self._cordon_ends
        own = msgspec.structs.replace(self._job_service.node(), leaves=left, cordon_ends=cordon_ends)
        if self._keep_cordon is not None:
            await self._keep_cordon(own.reason)
        return msgspec.structs.replace(own, name=name or own.name)

    async def lead_rendezvous(self, rendezvous: RendezvousRequest) -> bool:
        if self._lead_for_torchrun is None:
            why = "this supervisor serves one job alone; ask the daemon of the node"
            raise InvalidRequestError(f"cannot lead the rendezvous of job {rendezvous.job_id}: {why}")
        return await self._lead_for_torchrun(rendezvous)

    # --- events and logs -------------------------------------------------------------------------------------------

    async def until_complete(self, job_id: str) -> None:
        if self._until_told is not None:
            with anyio.move_on_after(LAST_EVENTS_S):
                await self._until_told(job_id)

    def events_elsewhere(
        self, job_id: str, *, after_sequence: int, follow: bool
    ) -> AsyncGenerator[RecordedEvent] | None:
        if self._node_requests.leads(job_id) or not self._view.is_shared(job_id) or self._has_ended(job_id):
            return None
        return self._leaders_events(job_id, after_sequence, follow)

    async def _leaders_events(self, job_id: str, last: int, follow: bool) -> AsyncGenerator[RecordedEvent]:
        wait_s = EVENTS_WAIT_S if follow else 0.0
        while True:
            question = ReadEvents(last, wait_s)
            answer = await self._until_answered(job_id, question)
            assert isinstance(answer, Events), "the codec lets nothing else through as an answer to ReadEvents"
            for event in answer.events:
                yield event
                last = event.sequence
            if answer.is_last or not (answer.events or follow):
                return

    async def _until_answered(self, job_id: str, question: ReadEvents) -> Answer:
        """Returns the leader's answer, for which a job that has ended here does not wait long: the leader ends, too."""
        why = f"the job has ended here, and no answer has come within {LAST_EVENTS_S:g} s"
        answer: Answer | HoldfastError = NoAnswerError(f"cannot ask the leader of job {job_id}: {why}")
        timeout_s = question.wait_s + ORDER_ANSWER_S
        async with anyio.create_task_group() as tasks:

            async def until_ended() -> None:
                await self._job_service.wait(job_id)
                await pause(LAST_EVENTS_S, why="the leader tells its last events as it ends")
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_ended)
            try:
                answer = await self._node_requests.ask(job_id, LEADER, question, timeout_s=timeout_s)
            except HoldfastError as error:
                answer = error
            tasks.cancel_scope.cancel()
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    def logs_elsewhere(self, job: JobReport) -> Mapping[str, OpenLogs]:
        if not self._view.is_shared(job.job_id) or self._has_ended(job.job_id):
            return {}
        own_name = self._view.own_name(job.job_id)
        return {
            node.name: partial(remote_logs.pieces, self._node_requests, job.job_id, node.name)
            for node in job.nodes
            if node.name != own_name and node.lost_at_ns is None
        }

    # --- what other nodes ask --------------------------------------------------------------------------------------

    async def answer(self, job_id: str, by: str, question: Question) -> Answer:
        """Answers a question; see questions.Handler."""
        part = self._view.own_part(job_id)
        if part is None:
            raise NotFoundError(f"cannot answer node {by}: job {job_id} is not known here; see holdfast jobs there")
        match question:
            case ShowPart():
                return part
            case ShowWhole():
                self._check_leads(job_id)
                return Whole(*await self._look(job_id))
            case TellUpdate():
                self._check_leads(job_id)
                taken = self._view.take_events(job_id, by, question)
                return UpdateTaken(taken, self._view.pace_s(job_id), self._view.own_events(job_id, by, question))
            case ReadEvents(after_sequence, wait_s):
                self._check_leads(job_id)
                events = await self._read_events(job_id, after_sequence, min(wait_s, EVENTS_WAIT_MAX_S))
                self._check_leads(job_id)  # The asker goes on with the next leader, which numbers them itself.
                return events
            case ShowStacks(budget_s, rank):
                return Stacks(await self._job_service.stacks(job_id, rank, min(budget_s, 2 * STACKS_FOR_PEOPLE_S)))
            case SetCordon():
                return Done(await self._set_own_cordon(self._view.own_name(job_id), question))
            case TellSections():
                self._check_leads(job_id)
                return self._take_sections(job_id, by, question)
            case ReadLogs() | CloseLogs():
                if self._read_logs is None:
                    raise InvalidRequestError(f"cannot show logs to node {by}: none are read here; ask another node")
                return await self._read_logs(by, part.part, question)

    def _check_leads(self, job_id: str) -> None:
        if not self._node_requests.leads(job_id):
            raise NoAnswerError(f"cannot answer for job {job_id}: this node does not lead it")

    async def _read_events(self, job_id: str, after_sequence: int, wait_s: float) -> Events:
        async with self._job_service.subscribe(job_id) as coming:  # before the past is read, to miss no event
            events = await self._past_events(job_id, after_sequence)
            if events or not wait_s:
                return Events(events, is_last=not events and self._has_ended(job_id))
            with anyio.move_on_after(wait_s):
                async for _ in coming:
                    break
        events = await self._past_events(job_id, after_sequence)
        return Events(events, is_last=not events and self._has_ended(job_id))

    async def _past_events(self, job_id: str, after_sequence: int) -> tuple[RecordedEvent, ...]:
        try:
            events = await in_thread(
                lambda: self._history.events(job_id, after_sequence=after_sequence, limit=EVENTS_AT_ONCE)
            )
        except OSError as error:
            raise ExhaustedError(
                f"cannot show events of job {job_id}: {error}; check the state folder's disk"
            ) from error
        return tuple(events)


def _as_left(node: NodeReport, job_id: str, reason: str) -> NodeReport:
    """Returns the node as one that has left the job: that its supervisor no longer answers for it is not a fault."""
    job_ids = tuple(other for other in node.job_ids if other != job_id)
    return msgspec.structs.replace(node, state="left", reason=reason, job_ids=job_ids)


def _with_reasons(node: NodeReport, slow: Sequence[str]) -> NodeReport:
    """Adds why the node needs attention to the reason of its state."""
    left_out = f"{len(slow) - SLOW_SHOWN_MAX} more, see holdfast status" if len(slow) > SLOW_SHOWN_MAX else ""
    reasons = (node.reason, *slow[:SLOW_SHOWN_MAX], left_out)
    return msgspec.structs.replace(node, reason="; ".join(filter(None, reasons)))
