"""Which questions of other nodes wait for an answer?

The connections to other nodes put them in, and one reader answers them. So the connections are made first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import anyio
import msgspec

from supervisor.errors import HoldfastError, NoAnswerError
from supervisor.ports.questions import Answer, Handler, Question, Refused, Reply

_log = logging.getLogger("holdfast.cluster")


class _Asked(msgspec.Struct, frozen=True):
    job_id: str
    by: str
    question: Question
    reply: Reply


class QuestionInbox:
    """The questions of all jobs; each connection bounds its own. Only for the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[_Asked] = deque()
        self._arrived = anyio.Event()

    def put(self, job_id: str, by: str, question: Question, reply: Reply) -> None:
        """Keeps the question until it is answered: see questions.TakeQuestion."""
        self._waiting.append(_Asked(job_id, by, question, reply))
        self._arrived.set()

    async def answer(self, handler: Handler, own_name: Callable[[str], str]) -> None:
        """Answers each question in a task of its own, until cancelled. `own_name`: this node's in a job."""
        async with anyio.create_task_group() as tasks:
            while True:
                while self._waiting:
                    tasks.start_soon(_answer, self._waiting.popleft(), handler, own_name)
                self._arrived = anyio.Event()
                await self._arrived.wait()


async def _answer(asked: _Asked, handler: Handler, own_name: Callable[[str], str]) -> None:
    try:
        asked.reply(await _answer_or_refusal(asked, handler, own_name))
    except Exception:  # noqa: BLE001 - the bulkhead: a person's question must not end the job
        _log.warning("an answer to node %s about job %s is lost", asked.by, asked.job_id, exc_info=True)


async def _answer_or_refusal(asked: _Asked, handler: Handler, own_name: Callable[[str], str]) -> Answer:
    try:
        return await handler(asked.job_id, asked.by, asked.question)
    except HoldfastError as error:
        return Refused(error.reason, str(error))
    except Exception:  # noqa: BLE001 - the same bulkhead
        own = own_name(asked.job_id)
        _log.warning("node %s cannot answer %s", own, type(asked.question).__name__, exc_info=True)
        return Refused(NoAnswerError.reason, f"cannot ask node {own}: a fault of its supervisor")
