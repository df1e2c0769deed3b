"""Does output of another node come in order and to its end, and is its reader closed if nobody reads?"""

from __future__ import annotations

from contextlib import aclosing

import pytest

from supervisor.errors import NoAnswerError
from supervisor.ports.questions import Answer, CloseLogs, Logs, Question, ReadLogs
from supervisor.ports.reports import LogBytes
from supervisor.queries import remote_logs
from tests.queries.shared_job import FakeNodeRequests


def piece(text: str) -> LogBytes:
    return LogBytes(0, 0, False, text.encode())


def node(*answers: Logs) -> FakeNodeRequests:
    left = list(answers)

    def answer(question: Question) -> Answer:
        return left.pop(0) if isinstance(question, ReadLogs) else Logs((), is_last=True)

    node_requests = FakeNodeRequests(leads=True)
    node_requests.answers["n1"] = answer
    return node_requests


def read(node_requests: FakeNodeRequests, *, follow: bool = False):
    return remote_logs.pieces(
        node_requests, "j", "n1", rank=None, cycle=None, tail_lines=0, first_cycle=3, follow=follow
    )


async def test_all_pieces_come_step_by_step():
    node_requests = node(Logs((piece("a"), piece("b"))), Logs(()), Logs((piece("c"),)), Logs((), is_last=True))
    assert [each.output async for each in read(node_requests)] == [b"a", b"b", b"c"]
    steps = [question.step for _, question in node_requests.asked if isinstance(question, ReadLogs)]
    assert steps == [1, 2, 3, 4]
    assert {question.first_cycle for _, question in node_requests.asked if isinstance(question, ReadLogs)} == {3}
    assert len({question.reader for _, question in node_requests.asked if isinstance(question, ReadLogs)}) == 1


async def test_a_disk_that_does_not_answer_is_an_error_unless_the_reader_follows():
    silent = node(Logs((piece("a"),)), *(Logs(()) for _ in range(9)), Logs((piece("b"),)), Logs((), is_last=True))
    assert [each.output async for each in read(silent, follow=True)] == [b"a", b"b"]
    node_requests = node(Logs(()), Logs((piece("a"),)), Logs(()), Logs(()))
    pieces = read(node_requests)
    assert (await anext(pieces)).output == b"a"
    with pytest.raises(NoAnswerError, match="cannot read the output of node n1: its disk does not answer"):
        await anext(pieces)
    assert isinstance(node_requests.asked[-1][1], CloseLogs)


async def test_a_reader_that_is_left_is_closed():
    node_requests = node(Logs((piece("a"), piece("b"))))
    async with aclosing(read(node_requests, follow=True)) as pieces:
        assert (await anext(pieces)).output == b"a"
    assert isinstance(node_requests.asked[-1][1], CloseLogs)


async def test_a_node_that_does_not_answer_is_an_error():
    with pytest.raises(NoAnswerError, match="cannot ask node n1"):
        await anext(read(FakeNodeRequests(leads=True)))


async def test_a_node_that_reads_on_and_has_found_no_output_yet_is_waited_for():
    node_requests = node(*(Logs((piece(""),)) for _ in range(9)), Logs((piece("a"),)), Logs((), is_last=True))
    assert [each.output async for each in read(node_requests)] == [b"a"]
