"""When has a node left a job, for people who drain it from another node?

The leader knows, and is asked again after each event, or from time to time if its history can't be read. While no
leader answers, nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from supervisor.errors import ExhaustedError, NoAnswerError
from supervisor.ports.questions import LEADER, Events, NodeRequests, ReadEvents, ShowWhole, Whole
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.ports.timed_waits import pause
from supervisor.queries.job_service import JobService

ANSWER_S = 5.0
EVENT_WAIT_S = 20.0  # the longest time until the leader is asked again although nothing has happened
NO_LEADER_S = 1.0
UNNAMED_S = 10.0  # longer than a new leader waits for the nodes of its job
_GONE = frozenset({"left", "lost", "refused", "stopped"})  # see core/cluster/status_view.py


class Departures:
    def __init__(self, job_service: JobService, node_requests: NodeRequests) -> None:
        self._job_service = job_service
        self._node_requests = node_requests

    async def until_left(self, job_id: str, node: str) -> None:
        """Returns once the node has no part in the job on several nodes, or the job has ended here."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_with_job, job_id, tasks.cancel_scope)
            await self._watch(job_id, node)
            tasks.cancel_scope.cancel()

    async def _end_with_job(self, job_id: str, scope: anyio.CancelScope) -> None:
        await self._job_service.wait(job_id)
        scope.cancel()

    async def _watch(self, job_id: str, node: str) -> None:
        last, wait_s, was_named = 0, 0.0, True
        while True:
            try:
                if events := await self._events(job_id, ReadEvents(last, wait_s)):
                    last, wait_s = events[-1].sequence, 0.0
                    continue
                whole = await self._node_requests.ask(job_id, LEADER, ShowWhole(), timeout_s=ANSWER_S)
                assert isinstance(whole, Whole), "the codec lets nothing else through as an answer to ShowWhole"
            except NoAnswerError:
                await pause(NO_LEADER_S, why="no leader answers at this moment")
                last, wait_s = 0, 0.0  # the next leader counts its events itself
                continue
            state = _state(whole.job, node)
            if state in _GONE or not (state or was_named):
                return
            wait_s, was_named = EVENT_WAIT_S, bool(state)
            if not state:
                await pause(UNNAMED_S, why="a new leader may hear the node later")

    async def _events(self, job_id: str, question: ReadEvents) -> Sequence[RecordedEvent]:
        """Returns the leader's next events; none if its history can't be read: what it reports needs no disk."""
        try:
            answer = await self._node_requests.ask(job_id, LEADER, question, timeout_s=ANSWER_S + question.wait_s)
        except ExhaustedError:
            await pause(NO_LEADER_S, why="the leader's disk does not answer at this moment")
            return ()
        assert isinstance(answer, Events), "the codec lets nothing else through as an answer to ReadEvents"
        return answer.events


def _state(report: JobReport, node: str) -> str:
    """Returns the node's state; "": it is not named."""
    return next((each.state for each in report.nodes if each.name == node), "")
