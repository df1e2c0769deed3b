"""The supervisor's end of the worker channel in its simplest form: a real socket, a real page, no decisions.

`python -m tests.worker_client.fake_supervisor SOCKET page|frames` is the same as a process of its own, for tests that
stop or kill it.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_wire import page_layout as layout
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder, encode
from holdfast_wire.v1 import worker_pb2 as wire

WAIT_S = 20.0
TOKEN = b"\x00token of the job\n\xff"


@dataclass(frozen=True)
class Seen:
    """A rank's progress as the supervisor knows it, by page or by frames, on CLOCK_MONOTONIC."""

    initialised_ns: int
    heartbeat_ns: int
    heartbeats: int
    out_of_section_since_ns: int
    first_step_seen: bool
    steps_since_first: int
    open_sections: Mapping[str, int]


@dataclass
class Connection:
    """One client. `frames` grows as it sends; `page` is None if progress comes in frames."""

    sock: socket.socket
    sections: tuple[str, ...]
    peer_pid: int
    page: memoryview | None = None
    frames: list[wire.WorkerFrame] = field(default_factory=list[wire.WorkerFrame])
    progress_frames: int = 0
    is_closed: bool = False
    _last: Seen | None = None

    @property
    def hello(self) -> wire.Hello:
        return self.frames[0].hello

    def of(self, kind: str) -> list[wire.WorkerFrame]:
        return [frame for frame in list(self.frames) if frame.WhichOneof("body") == kind]

    def send(self, frame: wire.SupervisorFrame) -> None:
        self.sock.sendall(encode(frame.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX))

    def seen(self) -> Seen | None:
        """Returns the newest progress; None if there is none yet."""
        if self.page is None:
            return self._last
        words = self.page
        slots = enumerate(words[layout.SECTION_SLOTS_START : layout.SECTION_SLOTS_START + len(self.sections)].tolist())
        opened = {self.sections[slot]: since for slot, since in slots if since}
        return Seen(
            open_sections=opened,
            initialised_ns=words[layout.WORD_INITIALISED_NS],
            heartbeat_ns=words[layout.WORD_HEARTBEAT_NS],
            heartbeats=words[layout.WORD_HEARTBEATS],
            out_of_section_since_ns=words[layout.WORD_OUT_OF_SECTION_SINCE_NS],
            first_step_seen=bool(words[layout.WORD_FIRST_STEP_SEEN]),
            steps_since_first=words[layout.WORD_STEPS_SINCE_FIRST],
        )

    def take(self, frame: wire.WorkerFrame) -> None:
        if frame.WhichOneof("body") != "progress":
            self.frames.append(frame)
            return
        self.progress_frames += 1
        now_ns, told = time.monotonic_ns(), frame.progress
        self._last = Seen(
            initialised_ns=now_ns - told.initialised_age_ns,
            heartbeat_ns=now_ns - told.heartbeat_age_ns if told.HasField("heartbeat_age_ns") else 0,
            heartbeats=told.heartbeats,
            out_of_section_since_ns=now_ns - told.out_of_section_age_ns,
            first_step_seen=told.first_step_seen,
            steps_since_first=told.steps_since_first,
            open_sections={self.sections[each.slot]: now_ns - each.age_ns for each in told.open_sections},
        )


@dataclass
class FakeSupervisor:
    """Serves `path` from construction to `stop()`. Its answers may be changed at any time."""

    path: Path
    shares_page: bool = True
    sections: tuple[str, ...] = ("setup", "step", "checkpointing")
    limits: wire.Limits = field(default_factory=lambda: wire.Limits(heartbeat_s=0.5))  # frames ten times as often
    safety_factor: float = 5.0
    install_exception_hook: bool = False
    answers: bool = True  # False: accepts hellos without an answer
    accepts_control: bool = True
    lease_s: float | None = None  # how long each rank's holds from now on; None: an older supervisor, without leases
    refusal: wire.Refused | None = None
    seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    layout_version: int = layout.LAYOUT_VERSION
    connections: list[Connection] = field(default_factory=list[Connection])

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._questions: list[tuple[Connection, int]] = []  # on the lease, not answered yet
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._is_stopping = False
        self._start(self._accept)

    def stop(self) -> None:
        """Ends all connections and removes the socket."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)
        self.drop_connections()
        for thread in self._threads:
            thread.join(WAIT_S)
        self._listener.close()

    def drop_connections(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it may end at this very moment
                connection.sock.shutdown(socket.SHUT_RDWR)

    def extend_lease(self, lease_s: float) -> None:
        with self._changed:
            self.lease_s = lease_s
            for connection in self.connections:
                self._write_lease(connection)
            for connection, request_id in self._questions:
                if connection.is_closed:
                    continue
                connection.send(wire.SupervisorFrame(lease=wire.Lease(request_id=request_id)))
            self._questions.clear()

    def _write_lease(self, connection: Connection) -> None:
        if connection.page is not None and self.lease_s is not None:
            until_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(min(self.lease_s, 1e6) * 1e9)
            unbounded = layout.LEASE_UNBOUNDED
            connection.page[layout.WORD_LEASE_UNTIL_NS] = unbounded if self.lease_s == math.inf else until_ns

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Waits until `condition` holds, at most WAIT_S. Polls, because pages change without an event."""
        with self._changed:
            until_s = time.monotonic() + WAIT_S
            while not condition():
                assert time.monotonic() < until_s, f"waited {WAIT_S} s in vain for {what or condition}"
                self._changed.wait(0.01)

    def client(self, number: int = -1) -> Connection:
        """Returns that connection, once it was welcomed or, without an answer, has sent its hello."""
        wanted = number + 1 if number >= 0 else 1
        self.wait(lambda: len(self.connections) >= wanted and self.connections[number].frames, "a hello")
        return self.connections[number]

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name="fake-supervisor")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            connection = Connection(sock, self.sections, pid)
            self._start(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        decoder = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX)
        try:
            while data := connection.sock.recv(65536):
                for payload in decoder.feed(data):
                    self._take(connection, wire.WorkerFrame.FromString(payload))
        except OSError:
            pass
        finally:
            with self._changed:
                connection.is_closed = True
                self._changed.notify_all()
            connection.sock.close()

    def _take(self, connection: Connection, frame: wire.WorkerFrame) -> None:
        kind = frame.WhichOneof("body")
        with self._changed:
            connection.take(frame)
            if kind == "hello":
                self.connections.append(connection)
                if self.answers:
                    self._answer_hello(connection, frame.hello)
            if kind == "workload_control" and self.accepts_control:
                accepted = wire.Accepted(request_id=frame.workload_control.request_id)
                connection.send(wire.SupervisorFrame(accepted=accepted))
            if kind == "lease_question":
                self._answer_on_lease(connection, frame.lease_question.request_id)
            self._changed.notify_all()

    def _answer_on_lease(self, connection: Connection, request_id: int) -> None:
        assert self.lease_s is not None, "an older supervisor takes the question for a defect"
        if self.lease_s <= 0:
            self._questions.append((connection, request_id))
            return
        answer = wire.Lease(request_id=request_id, left_ns=int(self.lease_s * 1e9))
        connection.send(wire.SupervisorFrame(lease=answer))

    def _answer_hello(self, connection: Connection, hello: wire.Hello) -> None:
        if hello.token != TOKEN:
            connection.send(wire.SupervisorFrame(refused=wire.Refused(reason="cannot admit you: wrong token")))
            return
        if self.refusal is not None:
            connection.send(wire.SupervisorFrame(refused=self.refusal))
            connection.sock.shutdown(socket.SHUT_RDWR)
            return
        self.welcome(connection)

    def welcome(self, connection: Connection) -> None:
        hello = connection.hello
        shared = self.shares_page and hello.can_share_page
        frame = wire.SupervisorFrame(
            welcome=wire.Welcome(
                protocol=1,
                cycle=hello.cycle,
                rank=hello.rank,
                page_shared=shared,
                limits=self.limits,
                sections=self.sections,
                warm_up_steps=hello.warm_up_steps if hello.HasField("warm_up_steps") else 5,
                safety_factor=self.safety_factor,
                install_exception_hook=self.install_exception_hook,
                answers_lease_questions=self.lease_s is not None,
                lease_is_unbounded=self.lease_s == math.inf,
            )
        )
        data = encode(frame.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX)
        if not shared:
            connection.sock.sendall(data)
            return
        descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, layout.PAGE_BYTES)
        connection.page = memoryview(mmap.mmap(descriptor, layout.PAGE_BYTES)).cast("q")
        connection.page[layout.WORD_LAYOUT] = self.layout_version
        self._write_lease(connection)
        if self.seals:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, self.seals)
        sent = socket.send_fds(connection.sock, [data[:5]], [descriptor])
        connection.sock.sendall(data[sent:])  # in two pieces, as in a stream
        os.close(descriptor)


if __name__ == "__main__":
    served = FakeSupervisor(Path(sys.argv[1]), shares_page=sys.argv[2] == "page")
    print("ready", flush=True)
    sys.stdin.read()
    served.stop()
