"""A question waits until somebody answers, and a refusal or a defect is an answer, too."""

from __future__ import annotations

import anyio
import pytest

from supervisor.errors import NoAnswerError, NotFoundError
from supervisor.ports.questions import (
    Answer,
    CloseLogs,
    Logs,
    Question,
    ReadEvents,
    Refused,
    SetCordon,
    ShowPart,
)
from supervisor.queries.question_inbox import QuestionInbox
from tests.settling import settled

LOGS = Logs((), is_last=True)


async def answer(job_id: str, by: str, question: Question) -> Answer:
    assert (job_id, by) == ("j", "n1")
    match question:
        case SetCordon():
            raise NotFoundError("cannot do that: no")
        case ReadEvents():
            raise ZeroDivisionError
        case ShowPart():
            await anyio.sleep_forever()
            raise AssertionError
        case _:
            return LOGS


def own_name(job_id: str) -> str:
    return f"n0-in-{job_id}"


async def test_every_question_is_answered_and_a_slow_one_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    inbox, answers = QuestionInbox(), list[Answer]()

    def lose(_: Answer) -> None:
        raise OSError("the connection is lost")

    inbox.put("j", "n1", ShowPart(), answers.append)
    inbox.put("j", "n1", CloseLogs("r"), answers.append)
    async with anyio.create_task_group() as tasks:
        await settled()
        assert answers == [], "nobody answers yet"
        tasks.start_soon(inbox.answer, answer, own_name)
        await settled()
        inbox.put("j", "n1", CloseLogs("r"), lose)
        inbox.put("j", "n1", SetCordon(True), answers.append)
        inbox.put("j", "n1", ReadEvents(0), answers.append)
        await settled()
        tasks.cancel_scope.cancel()
    assert answers == [
        LOGS,
        Refused(NotFoundError.reason, "cannot do that: no"),
        Refused(NoAnswerError.reason, "cannot ask node n0-in-j: a fault of its supervisor"),
    ]
    assert "an answer to node n1 about job j is lost" in caplog.messages
