"""The worker's end of the channel, for tests: sends exactly what a test says, true or not."""

from __future__ import annotations

import array
import mmap
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder, encode
from holdfast_wire.page_layout import PAGE_BYTES, SECTION_SLOTS_START
from holdfast_wire.v1 import worker_pb2

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.core.node import node_messages
from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.channel.worker_server import WorkerServer

T = TypeVar("T")
TOKEN = bytes(range(32))
JOB_ID = "train"
LIMITS = HangLimits(heartbeat_s=60.0, sections=(("step", 30.0), ("eval", None)), out_of_section_s=20.0)


async def until(condition: Callable[[], object], *, at_most_s: float = 10.0) -> None:
    with anyio.fail_after(at_most_s):
        while not condition():  # noqa: ASYNC110 the condition has no event
            await anyio.sleep(0.005)


@dataclass
class Kept:
    """Plays the engine: takes all events at once, in turn as long as `turns` are left.

    With `accept_by`, it accepts each request of a rank at once.
    """

    posted: list[node_messages.Event] = field(default_factory=list[node_messages.Event])
    turns: anyio.Semaphore | None = None
    accept_by: WorkerServer | None = None

    def post(self, event: node_messages.Event) -> None:
        self.posted.append(event)

    async def post_in_turn(self, event: node_messages.Event) -> None:
        if self.turns is not None:
            await self.turns.acquire()
        self.posted.append(event)
        if isinstance(event, node_messages.ControlRequested) and self.accept_by is not None:
            accept(self.accept_by, event)


def accept(server: WorkerServer, asked: node_messages.ControlRequested) -> None:
    """Sends what the engine sends once it has kept the request."""
    server.tell_ranks(asked.job_id, asked.cycle, (asked.local_rank,), node_messages.Accepted(asked.request_id))


@dataclass
class Served:
    """A running server and the events that it has posted."""

    server: WorkerServer
    path: Path
    posted: list[node_messages.Event] = field(default_factory=list[node_messages.Event])
    ranks: list[WorkerSide] = field(default_factory=list["WorkerSide"])

    @property
    def link(self) -> Path:
        """Returns the path where other scripts look for the socket."""
        return self.path.parents[1] / self.path.name

    def connect(self) -> WorkerSide:
        self.ranks.append(WorkerSide(self.path))
        return self.ranks[-1]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.posted if isinstance(event, kind)]


@asynccontextmanager
async def serve(
    tmp_path: Path,
    *,
    ranks: int = 4,
    cycle: int = 0,
    expect: bool = True,
    turns: anyio.Semaphore | None = None,
    accepts: bool = True,
) -> AsyncGenerator[Served]:
    """Runs a server with one open cycle; this process plays all its workers. `accepts`: each request at once."""
    directory = tmp_path / "sock"
    posted: list[node_messages.Event] = []
    engine = Kept(posted, turns)
    server = WorkerServer(
        socket_path=directory / "worker" / "worker.sock",
        events=engine,
        clock=Clock(),
        on_sections=lambda _: None,
    )
    engine.accept_by = server if accepts else None
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        served = Served(server, directory / "worker" / "worker.sock", posted)
        open_cycle(served, cycle=cycle, ranks=ranks)
        if expect:
            for local_rank in range(ranks):
                server.expect(JOB_ID, cycle, local_rank, os.getpid())
        try:
            yield served
        finally:
            for rank in served.ranks:
                rank.close()
            tasks.cancel_scope.cancel()


def open_cycle(
    served: Served, *, cycle: int = 0, ranks: int = 4, limits: HangLimits = LIMITS, is_fenced: bool = False
) -> None:
    spec = JobSpec(job_id=JOB_ID, command=("train.py",), local_world_size=ranks)
    served.server.open_cycle(JOB_ID, cycle, token=TOKEN, spec=spec, limits=limits, first_rank=0, is_fenced=is_fenced)


def hello(local_rank: int = 0, **changed: object) -> worker_pb2.WorkerFrame:
    values: dict[str, object] = {
        "protocol": 1,
        "token": TOKEN,
        "job_id": JOB_ID,
        "cycle": 0,
        "rank": local_rank,
        "local_rank": local_rank,
        "can_share_page": True,
        "monotonic_ns": time.monotonic_ns(),
        "client_version": "test",
    }
    return worker_pb2.WorkerFrame(hello=worker_pb2.Hello(**(values | changed)))  # pyright: ignore[reportArgumentType]


class WorkerSide:
    """One connection to a worker socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect(str(path))
        self._decoder = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX)
        self._received: list[bytes] = []
        self.page: memoryview | None = None

    async def send(self, frame: worker_pb2.WorkerFrame) -> None:
        await self.send_bytes(encode(frame.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX))

    async def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self.socket)

    async def receive(self, *, at_most_s: float = 10.0) -> worker_pb2.SupervisorFrame | None:
        """Returns the next frame, None at the end of the stream; maps a page that comes with it."""
        with anyio.fail_after(at_most_s):
            while not self._received:
                await anyio.wait_readable(self.socket)
                try:
                    data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(4))
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                for _, _, content in ancillary:
                    descriptor = array.array("i", content)[0]
                    self.page = memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("q")
                    os.close(descriptor)
                self._received += self._decoder.feed(data)
        frame = worker_pb2.SupervisorFrame()
        frame.ParseFromString(self._received.pop(0))
        return frame

    async def join(self, local_rank: int = 0, **changed: object) -> worker_pb2.Welcome:
        """Sends a hello and returns the welcome."""
        await self.send(hello(local_rank, **changed))
        frame = await self.receive()
        assert frame is not None
        assert frame.WhichOneof("body") == "welcome", frame
        return frame.welcome

    async def refused(self, frame: worker_pb2.WorkerFrame) -> worker_pb2.Refused:
        """Sends a frame, and returns the refusal, after which the connection is dropped."""
        await self.send(frame)
        answer = await self.receive()
        assert answer is not None
        assert answer.WhichOneof("body") == "refused", answer
        assert await self.receive() is None
        return answer.refused

    async def is_dropped(self, *, at_most_s: float = 10.0) -> None:
        """Waits until the server has closed the connection."""
        while await self.receive(at_most_s=at_most_s) is not None:
            continue

    def stamp(self, word: int, value: int) -> None:
        assert self.page is not None
        self.page[word] = value

    def open_section(self, slot: int, at_ns: int) -> None:
        self.stamp(SECTION_SLOTS_START + slot, at_ns)

    def close(self) -> None:
        self.socket.close()
