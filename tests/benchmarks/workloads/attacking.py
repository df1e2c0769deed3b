"""What may a broken or hostile process send to the socket on which a supervisor listens to its workers?"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

SLOW_CONNECTIONS_MAX = 64
ANSWER_EVERY = 64  # one connection in this many waits until the supervisor has closed it
ANSWER_LIMIT_S = 2.0
BURST = 32  # malformed frames that follow one good hello

_HEADER = struct.Struct(">I")


@dataclass(slots=True)
class Attack:
    inputs: int = 0
    took_s: float = 0.0
    slowest_answer_s: float = 0.0
    unanswered: int = 0
    refused: int = 0


class Attacker:
    """Keeps some connections open with half a frame sent, and sends batches of bad input on others."""

    def __init__(self, path: str, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._slow: deque[socket.socket] = deque()
        self._hello = _good_hello()
        self.seen = Attack()

    def attack(self, inputs: int, limit_s: float) -> Attack:
        """Sends at most so many inputs, for at most so long."""
        start_s = time.monotonic()
        rounds = 0
        while self.seen.inputs < inputs and time.monotonic() < start_s + limit_s:
            rounds += 1
            try:
                self._one(awaited=rounds % ANSWER_EVERY == 0)
            except (ConnectionError, BlockingIOError, TimeoutError):
                self.seen.refused += 1  # the supervisor closed before the input was complete: that is an answer too
        self.seen.took_s = time.monotonic() - start_s
        for connection in self._slow:
            connection.close()
        return self.seen

    def _one(self, *, awaited: bool) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_LIMIT_S)
        try:
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        kind = self._random.randrange(8)
        if kind == 0:
            self._hold(connection)
            return
        with connection:
            batch = [self._malformed(kind)] if kind < 6 or not self._hello else self._after_hello()
            self.seen.inputs += len(batch)
            connection.sendall(b"".join(batch))
            if awaited:
                self._await_close(connection)

    def _hold(self, connection: socket.socket) -> None:
        """Sends a frame that never ends."""
        connection.sendall(_HEADER.pack(1000) + b"\x0a")
        self.seen.inputs += 1
        self._slow.append(connection)
        if len(self._slow) > SLOW_CONNECTIONS_MAX:
            self._slow.popleft().close()

    def _malformed(self, kind: int) -> bytes:
        """Returns one input, which is no message in any protocol version."""
        noise = self._random.randbytes(self._random.randrange(1, 300))
        match kind:
            case 1:
                return _HEADER.pack(self._random.randrange(2**17, 2**32)) + noise  # longer than any frame may be
            case 2:
                return noise
            case 3:
                return _HEADER.pack(len(noise)) + noise
            case 4:
                return _HEADER.pack(0)
            case _:
                return _HEADER.pack(len(noise) + 100) + noise  # cut off

    def _after_hello(self) -> list[bytes]:
        """Returns bad frames of a process that knows the token."""
        frames = [self._framed_noise() for _ in range(BURST)]
        return [self._hello, *frames][: BURST + 1]

    def _framed_noise(self) -> bytes:
        noise = self._random.randbytes(self._random.randrange(1, 300))
        return _HEADER.pack(len(noise)) + noise

    def _await_close(self, connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)
        start_s = time.monotonic()
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            self.seen.unanswered += 1
        self.seen.slowest_answer_s = max(self.seen.slowest_answer_s, time.monotonic() - start_s)


def _good_hello() -> bytes:
    """Returns the hello of this worker's client; b"" if the launcher is not Holdfast."""
    token_file = os.environ.get("HOLDFAST_TOKEN_FILE")
    if not token_file:
        return b""
    from holdfast_wire.v1 import worker_pb2

    with open(token_file, "rb") as file:
        token = file.read()
    hello = worker_pb2.Hello(
        protocol=1,
        token=token,
        job_id=os.environ["HOLDFAST_JOB_ID"],
        cycle=int(os.environ["HOLDFAST_CYCLE"]),
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        can_share_page=False,
        monotonic_ns=time.monotonic_ns(),
        client_version="bench",
    )
    payload = worker_pb2.WorkerFrame(hello=hello).SerializeToString()
    return _HEADER.pack(len(payload)) + payload
