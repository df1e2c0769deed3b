"""How does a question get from one node of a job to another, and the answer back?

Every node is connected to the leader, which forwards messages for others. Nothing is stored or resent here: the asker
waits for a bounded time, or until the other node has parted, and then the question counts as unanswered.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import anyio
from holdfast_wire.framing import FrameTooLongError

from supervisor import errors
from supervisor.edges.peers.codec import question_codec
from supervisor.edges.peers.codec.cluster_frames import Answered, Aside, Asked, ClusterProtocolError
from supervisor.errors import HoldfastError, NoAnswerError
from supervisor.ports.questions import (
    LEADER,
    Answer,
    Events,
    Logs,
    Question,
    Refused,
    Reply,
    TakeQuestion,
)

PART_BYTES_MAX = 32 * 1024  # so an order waits for at most one part
ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWERING_MAX = 64  # questions that are being answered at the same time
READ_ON_S = 0.3  # after an answer that is not the last, the asker asks for the next one within this time
CLOSED = "this node's connections to the others have been closed"

_log = logging.getLogger("holdfast.cluster")


class _Pending:
    def __init__(self, to: str) -> None:
        self.to = to
        self.parts: list[bytes] = []
        self.bytes = 0
        self.answer: Answer | None = None
        self.arrived = anyio.Event()

    def settle(self, answer: Answer) -> None:
        if self.answer is None:
            self.answer = answer
            self.arrived.set()


def refuse(job_id: str, by: str, question: Question, reply: Reply) -> None:
    """Refuses every question, for callers whose nodes ask each other nothing; see questions.TakeQuestion."""
    del by, question
    reply(Refused(NoAnswerError.reason, f"cannot answer: this node of job {job_id} takes no questions"))


class RequestRouter:
    """Forwards questions; see questions.NodeRequests. For the event loop's thread."""

    def __init__(
        self,
        *,
        own_name: str,
        leads: bool,
        pass_on: Callable[[str, Aside], bool],
        take_question: TakeQuestion,
        outage: Callable[[], str] = lambda: "",
    ) -> None:
        """`pass_on` sends towards a node; a follower has only one way. It returns False if it can't send now.

        `outage`: see questions.NodeRequests.
        """
        self._own_name = own_name
        self.is_leader = leads
        self._pass_on = pass_on
        self._take_question = take_question
        self._outage = outage
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._answering = 0
        self._reads_on_until_s = 0.0
        self._changed = anyio.Event()

    def leads(self, job_id: str) -> bool:
        del job_id
        return self.is_leader

    def outage(self, job_id: str) -> str:
        del job_id
        return self._outage()

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        """Asks another node. Raises NoAnswerError, or the HoldfastError with which the other side refuses."""
        whom = _in_words(to)
        number, pending = next(self._numbers), _Pending(to)
        if self._is_for_us(to):
            self._take_question(job_id, self._own_name, question, pending.settle)
            await pending.arrived.wait()
            assert pending.answer is not None, "it has arrived"
            return _unless_refused(pending.answer)
        self._pending[number] = pending
        try:
            asked = Asked(job_id, to, self._own_name, number, question_codec.encode_question(question))
            try:
                is_on_its_way = self._pass_on(to, asked)
            except FrameTooLongError as error:
                raise NoAnswerError(f"cannot ask {whom}: {error}") from error
            if not is_on_its_way:
                raise NoAnswerError(f"cannot ask {whom}: it is not connected")
            with anyio.move_on_after(timeout_s):
                await pending.arrived.wait()
        finally:
            del self._pending[number]
            self._note_answer(pending.answer)
        if pending.answer is None:
            raise NoAnswerError(f"cannot ask {whom}: no answer within {timeout_s:g} s")
        return _unless_refused(pending.answer)

    def take(self, sender: str, aside: Aside) -> None:
        """Handles an aside that came over a connection from `sender`."""
        match aside:
            case Asked(by=by) if self.is_leader and by != sender:
                _log.warning("a question of node %s is dropped: it comes from node %s", by, sender)
            case Asked(to=to) if self._is_for_us(to):
                self._take_frame(aside)
            case Answered(to=to) if to == self._own_name:
                self._take_answer(aside)
            case Asked() | Answered() if self.is_leader:
                if not self._pass_on(aside.to, aside) and isinstance(aside, Asked):
                    refused = Refused(NoAnswerError.reason, f"cannot ask node {aside.to}: it is not connected")
                    self._send_answer(aside, refused)
            case _:
                _log.debug("an aside for node %s has come to node %s", aside.to, self._own_name)

    def parted(self, node: str | None, why: str) -> None:
        """Ends the wait for answers of a node that is no longer connected; None: for all answers."""
        for pending in list(self._pending.values()):
            if node in (None, pending.to):
                pending.settle(Refused(NoAnswerError.reason, f"cannot ask {_in_words(pending.to)}: {why}"))

    async def until_quiet(self) -> None:
        """Waits until no question is open, here or of another node, and nobody reads on. The caller bounds the time."""
        while self._pending or self._answering or anyio.current_time() < self._reads_on_until_s:
            self._changed = anyio.Event()
            with anyio.move_on_after(READ_ON_S):
                await self._changed.wait()

    def _note_answer(self, answer: Answer | None) -> None:
        if isinstance(answer, Logs | Events) and not answer.is_last:
            self._reads_on_until_s = anyio.current_time() + READ_ON_S
        self._changed.set()

    def _is_for_us(self, to: str) -> bool:
        return to == self._own_name or (self.is_leader and to == LEADER)

    def _take_answer(self, answered: Answered) -> None:
        pending = self._pending.get(answered.number)
        if pending is None or answered.part != len(pending.parts):
            return  # nobody waits for it any more, or a part of it was lost
        pending.parts.append(answered.answer)
        pending.bytes += len(answered.answer)
        if pending.bytes > ANSWER_BYTES_MAX:
            pending.parts = [b""] * len(pending.parts)
        elif answered.is_last:
            try:
                pending.settle(question_codec.decode_answer(b"".join(pending.parts)))
            except ClusterProtocolError as error:
                pending.settle(Refused(NoAnswerError.reason, f"cannot read an answer: {error}"))

    def _take_frame(self, asked: Asked) -> None:
        if self._answering >= ANSWERING_MAX:
            self._send_answer(
                asked, Refused(NoAnswerError.reason, f"cannot answer: {ANSWERING_MAX} others ask already")
            )
            return
        try:
            question = question_codec.decode_question(asked.question)
        except ClusterProtocolError as error:
            self._send_answer(asked, Refused(NoAnswerError.reason, f"cannot answer: {error}"))
            return
        self._answering += 1

        def reply(answer: Answer) -> None:
            self._answering -= 1
            self._send_answer(asked, answer)
            self._note_answer(answer)

        self._take_question(asked.job_id, asked.by, question, reply)

    def _send_answer(self, asked: Asked, answer: Answer) -> None:
        payload = question_codec.encode_answer(answer)
        for part, start in enumerate(range(0, max(len(payload), 1), PART_BYTES_MAX)):
            end = start + PART_BYTES_MAX
            answered = Answered(asked.job_id, asked.by, asked.number, part, end >= len(payload), payload[start:end])
            if not self._pass_on(asked.by, answered):
                return


def _in_words(node: str) -> str:
    return f"node {node}" if node != LEADER else "the leader"


def _unless_refused(answer: Answer) -> Answer:
    if isinstance(answer, Refused):
        raise _KINDS.get(answer.code, HoldfastError)(answer.message)
    return answer


_KINDS: dict[str, type[HoldfastError]] = {
    kind.reason: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)
}
