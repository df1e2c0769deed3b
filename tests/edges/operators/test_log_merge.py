"""Is the output of several nodes in one order, and does a missing node not hold back the others?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

import anyio
import pytest

from supervisor.edges.operators import log_merge
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.edges.operators.log_merge import NodeOutput, as_pieces, follow, merge_in_order
from supervisor.errors import ExhaustedError, HoldfastError, InvalidRequestError, NoAnswerError, NotFoundError
from supervisor.ports.reports import LogBytes

Output = AsyncGenerator[LogBytes]
SILENT = NoAnswerError("cannot ask node b: no answer within 5 s")


async def source(places: Sequence[tuple[int, int]], *, error: HoldfastError | None = None) -> AsyncGenerator[LogBytes]:
    for cycle, rank in places:
        yield LogBytes(rank, cycle, False, f"{cycle}.{rank}".encode(), 7 + rank)
    if error is not None:
        raise error


CLOSED = NotFoundError("cannot show more output: its reader was closed")


def node_output(folder: str, choice: LogChoice, coming: list[AsyncGenerator[LogBytes]]) -> NodeOutput:
    """`coming`: what comes each time that the node's output is opened; after the last, its supervisor refuses."""

    def open_pieces(**_: int | None) -> AsyncGenerator[LogBytes]:
        return coming.pop(0) if coming else source([], error=CLOSED)

    return NodeOutput(folder, choice, open_pieces)


async def merged(
    own: AsyncGenerator[LogBytes], others: Mapping[str, Sequence[AsyncGenerator[LogBytes]]]
) -> tuple[list[str], list[str]]:
    """Returns what is sent and what is missing. `others`: the sources of a node, each time that it is opened."""
    seen: list[str] = []
    missing: list[str] = []

    async def send(piece: LogPiece) -> None:
        seen.append(piece.data.decode())

    outputs = {name: node_output(f"/{name}", LogChoice(), [*coming]) for name, coming in others.items()}
    await merge_in_order(as_pieces(own), outputs, send, missing.append)
    return seen, missing


async def test_what_is_there_comes_in_order_and_what_is_missing_is_told():
    seen, missing = await merged(
        source([(0, 0), (0, 1), (1, 2)]),
        {"b": [source([(0, 2)], error=SILENT)], "c": [source([(1, 0), (1, 1)])]},
    )
    assert seen == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert missing == ["the output of node b is not complete: cannot ask node b: no answer within 5 s"]


async def test_a_node_that_has_closed_its_reader_is_read_again_as_long_as_it_has_more():
    two = [(0, 1), (0, 2)]
    coming = [source([(0, 1)], error=CLOSED), source(two, error=CLOSED), source(two, error=CLOSED), source([(0, 3)])]
    seen, missing = await merged(source([(0, 0)]), {"b": coming})
    assert seen == ["0.0", "0.1", "0.2"]
    assert missing == [f"the output of node b is not complete: {CLOSED}"]
    seen, missing = await merged(source([(0, 0)]), {"b": [source([(0, 1)], error=CLOSED)]})
    assert (seen, missing) == (["0.0", "0.1"], [f"the output of node b is not complete: {CLOSED}"])


class Followed:
    """A live job. `looks`: what each look finds, node by node with its folder; the job ends after the last one.

    A second output is the whole of a node of which the first one has the last lines.
    """

    def __init__(self, *looks: Mapping[str, tuple[str, Output] | tuple[str, Output, Output]]) -> None:
        self._looks = list(looks)
        self._ended = anyio.Event()
        self.seen: list[str] = []
        self.notes: list[str] = []
        self.first_cycles: list[int] = []  # that a node is asked for, each time

    async def to_its_end(self) -> None:
        await follow(as_pieces(source([(0, 0)])), self._look, self._send, self._note, ended=self._ended)

    async def _look(self) -> Mapping[str, NodeOutput]:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()  # What the last look has found is read.
        if not self._looks:
            self._ended.set()
            return {}
        return {name: self._output(folder, *outputs) for name, (folder, *outputs) in self._looks.pop(0).items()}

    def _output(self, folder: str, chosen: Output, whole: Output | None = None) -> NodeOutput:
        def open_pieces(*, tail_lines: int, first_cycle: int, **_: int | None) -> Output:
            self.first_cycles.append(first_cycle)
            return chosen if whole is None or tail_lines else whole

        return NodeOutput(folder, LogChoice(tail_lines=0 if whole is None else 2), open_pieces)

    async def _send(self, piece: LogPiece) -> None:
        self.seen.append(piece.data.decode())

    async def _note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def _looks_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_merge, "LOOK_S", 0.001)


@pytest.mark.parametrize("error", [SILENT, NotFoundError("cannot: closed")])
async def test_a_node_that_could_not_answer_is_read_again_and_each_byte_comes_once(error: HoldfastError):
    job = Followed(
        {"b": ("/b", source([(0, 1), (1, 1)], error=error))},
        {"b": ("/b", source([(0, 1)], error=error))},
        {"b": ("/b", source([(0, 1), (1, 1), (1, 2), (2, 1)]))},
    )
    await job.to_its_end()
    assert sorted(job.seen) == ["0.0", "0.1", "1.1", "1.2", "2.1"]
    assert job.notes == [f"the output of node b is not complete: {error}; the node is asked again every 0.001 s"]
    assert job.first_cycles == [0, 1, 1], "no earlier cycle is read again"


async def test_a_node_that_can_not_read_its_files_is_read_less_and_less_often_until_there_is_something_new():
    error = ExhaustedError("cannot show output: Input/output error")
    read: list[int] = []

    async def fails(look: int) -> AsyncGenerator[LogBytes]:
        read.append(look)
        yield LogBytes(1, int(look >= 8), False, b"new", 7)
        raise error

    job = Followed(*({"b": ("/b", fails(look))} for look in range(1, 40)))
    await job.to_its_end()
    assert read == [1, 2, 4, 8, 9, 11, 15, 23, 35, 39], "the last time as the job ends"
    note = f"the output of node b is not complete: {error}; the node is asked again at least every 0.012 s"
    assert (job.seen, job.notes) == (["0.0", "new", "new"], [note, note])


async def test_the_last_words_of_a_node_that_could_not_read_its_files_come_and_are_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(log_merge, "LAST_OUTPUT_S", 0.05)

    async def can_read_again() -> AsyncGenerator[LogBytes]:
        yield LogBytes(1, 0, False, b"the crash", 7)
        await anyio.sleep_forever()

    error = ExhaustedError("cannot show output: Input/output error")
    failing = [{"b": ("/b", source([], error=error))} for _ in range(2)]
    job = Followed(*failing, {"b": ("/b", can_read_again())})
    with anyio.fail_after(10):
        await job.to_its_end()
    assert job.seen == ["0.0", "the crash"]


@pytest.mark.parametrize("fails_late", [False, True])
async def test_a_node_whose_first_read_fails_as_the_job_ends_is_asked_once_more(fails_late: bool):
    error = ExhaustedError("cannot show output: Input/output error")

    async def fails() -> Output:
        if fails_late:
            await anyio.sleep(0.05)
        raise error
        yield

    class EndsAtOnce(Followed):
        async def _look(self) -> Mapping[str, NodeOutput]:
            self._ended.set()
            return {"b": node_output("/b", LogChoice(), [fails(), source([(0, 1)])])}

    job = EndsAtOnce()
    await job.to_its_end()
    assert (sorted(job.seen), len(job.notes)) == (["0.0", "0.1"], 1)


async def test_a_node_whose_run_has_ended_is_read_again_in_its_next_run_only():
    job = Followed(
        {"b": ("/b/1", source([(0, 1)]))},
        {"b": ("/b/1", source([(9, 9)]))},
        {"b": ("/b/2", source([(1, 1)]))},
    )
    await job.to_its_end()
    assert (job.seen, job.notes) == (["0.0", "0.1", "1.1"], [])


async def test_a_node_that_refuses_is_not_asked_again():
    refusal = InvalidRequestError("cannot show logs to node a: none are read here; ask another node")
    job = Followed({"b": ("/b", source([], error=refusal))}, {"b": ("/b", source([(9, 9)]))})
    await job.to_its_end()
    assert (job.seen, job.notes) == (["0.0"], [f"the output of node b is not complete: {refusal}"])


async def test_the_end_of_the_job_does_not_wait_for_a_node_that_has_not_answered_again():
    async def says_nothing() -> AsyncGenerator[LogBytes]:
        await anyio.sleep_forever()
        yield LogBytes(9, 9, False, b"")

    job = Followed({"b": ("/b", source([], error=SILENT))}, {"b": ("/b", says_nothing())})
    with anyio.fail_after(10):
        await job.to_its_end()
    assert (job.seen, len(job.notes)) == (["0.0"], 1)


async def test_the_end_of_the_job_does_not_wait_long_for_a_node_that_has_always_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(log_merge, "LAST_OUTPUT_S", 0.05)

    async def stays() -> AsyncGenerator[LogBytes]:
        yield LogBytes(1, 0, False, b"0.1")
        await anyio.sleep_forever()

    job = Followed({"b": ("/b", stays())})
    with anyio.fail_after(10):
        await job.to_its_end()
    late = "cannot read the rest: it has not come within 0.05 s of the job's end"
    assert (sorted(job.seen), job.notes) == (["0.0", "0.1"], [f"the output of node b is not complete: {late}"])


async def test_a_piece_that_is_being_sent_is_not_cut(monkeypatch: pytest.MonkeyPatch):
    """Half of a message would spoil all that follows it."""
    monkeypatch.setattr(log_merge, "LAST_OUTPUT_S", 0.01)

    class Slow(Followed):
        async def _send(self, piece: LogPiece) -> None:
            await anyio.sleep(0.1)
            await super()._send(piece)

    job = Slow({"b": ("/b", source([(0, 1)]))})
    await job.to_its_end()
    assert sorted(job.seen) == ["0.0", "0.1"]


async def test_the_last_lines_of_a_node_that_is_read_again_go_on_where_they_were():
    printed = b"0123456789" * 15

    async def output(begin: int, end: int, error: HoldfastError | None = None) -> AsyncGenerator[LogBytes]:
        yield LogBytes(1, 3, False, printed[begin:end], 7, begin)
        if error is not None:
            raise error

    async def whole() -> AsyncGenerator[LogBytes]:
        yield LogBytes(1, 2, False, b"of an earlier cycle", 6, 0)
        yield LogBytes(1, 3, False, printed, 7, 0)

    job = Followed(
        {"b": ("/b", source([], error=SILENT), whole())},
        {"b": ("/b", output(90, 100, SILENT), whole())},
        {"b": ("/b", output(130, 150), whole())},
    )
    await job.to_its_end()
    assert "".join(each for each in job.seen if each != "0.0") == printed[90:].decode()
