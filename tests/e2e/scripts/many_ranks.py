"""One process that speaks for many ranks at once, directly over the wire: a burst takes milliseconds, not minutes.

`many_ranks.py ENDPOINT RANKS`; each line on stdin is a step (see `STEPS`), each answered by one line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from pathlib import Path

from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, WORKER_FRAME_BYTES_MAX, Decoder, encode
from holdfast_wire.v1 import worker_pb2 as wire

LIMIT_S = 30.0
BURST_WORDS = 1200  # more than the supervisor takes at once from one rank


def frame(**body: object) -> bytes:
    payload = wire.WorkerFrame(**body).SerializeToString()  # pyright: ignore[reportArgumentType]
    return encode(payload, frame_bytes_max=WORKER_FRAME_BYTES_MAX)


class Rank:
    def __init__(self, endpoint: dict[str, str], rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._decoder = Decoder(frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX)
        self.heard: list[wire.SupervisorFrame] = []
        self.is_closed = False
        self._unsent = bytearray()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(endpoint["HOLDFAST_SOCKET"])
        self.socket.setblocking(False)
        self.say(
            frame(
                hello=wire.Hello(
                    protocol=1,
                    token=Path(endpoint["HOLDFAST_TOKEN_FILE"]).read_bytes(),
                    job_id=endpoint["HOLDFAST_JOB_ID"],
                    rank=rank,
                    local_rank=rank,
                    can_share_page=rank % 2 == 0,
                    monotonic_ns=time.monotonic_ns(),
                )
            )
        )

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def say(self, data: bytes) -> None:
        """Sends without waiting: what the socket does not take stays here."""
        self._unsent += data
        self.go_on()

    def go_on(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.is_closed = True

    def hear(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.is_closed = self.is_closed or not data
        for payload in self._decoder.feed(data):
            self.heard.append(wire.SupervisorFrame.FromString(payload))

    def has_heard(self, kind: str) -> bool:
        return any(each.WhichOneof("body") == kind for each in self.heard)

    def enter(self) -> None:
        settings = wire.CallSettings(
            last_call_wait_s=1, soft_timeout_s=300, hard_timeout_s=600, termination_grace_s=5, barrier_timeout_s=60,
            completion_timeout_s=60, heartbeat_timeout_s=60,
        )  # fmt: skip
        self.say(
            frame(
                call_enter=wire.CallEnter(
                    call=1, initial_rank=self.rank, initial_world_size=self.world_size, settings=settings,
                    rank=self.rank, world_size=self.world_size,
                )
            )
        )  # fmt: skip

    def burst(self) -> None:
        """Sends messages, progress and limits, far more than any sane client."""
        began = frame(
            iteration_began=wire.IterationBegan(
                call=1, rank=self.rank, world_size=self.world_size, active_rank=self.rank,
                active_world_size=self.world_size,
            )
        )  # fmt: skip
        progress = frame(progress=wire.Progress(heartbeats=1, initialised_age_ns=1, heartbeat_age_ns=1))
        limits = frame(limits_calculated=wire.LimitsCalculated(limits=wire.Limits(heartbeat_s=300 + self.rank)))
        self.say(began * BURST_WORDS + progress * 20 + limits * 20)

    def complete(self) -> None:
        arrive = wire.BarrierArrive(call=1, barrier=wire.BarrierArrive.COMPLETION, rank=self.rank, active=True)
        self.say(frame(barrier_arrive=arrive))


class Ranks:
    def __init__(self, endpoint: dict[str, str], world_size: int) -> None:
        self.all = [Rank(endpoint, rank, world_size) for rank in range(world_size)]

    def until(self, kind: str) -> dict[str, object]:
        """Waits until all ranks have received `kind`, or their connections have ended."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + LIMIT_S:
            waiting = [rank for rank in self.all if not rank.has_heard(kind) and not rank.is_closed]
            if not waiting:
                break
            poller = select.poll()
            by_descriptor = {rank.socket.fileno(): rank for rank in waiting}
            for rank in waiting:
                poller.register(rank.socket, select.POLLIN | (select.POLLOUT if rank.unsent_bytes else 0))
            for descriptor, ready in poller.poll(1000):
                if ready & select.POLLOUT:
                    by_descriptor[descriptor].go_on()
                if ready & ~select.POLLOUT:
                    by_descriptor[descriptor].hear()
        return {
            "heard": sum(rank.has_heard(kind) for rank in self.all),
            "closed": [rank.rank for rank in self.all if rank.is_closed],
            "took_s": round(time.monotonic() - began_s, 3),
        }

    def each(self, step: str) -> dict[str, object]:
        began_s = time.monotonic()
        for rank in self.all:
            getattr(rank, step)()
        unsent_bytes = max(rank.unsent_bytes for rank in self.all)
        return {"took_s": round(time.monotonic() - began_s, 3), "unsent_bytes": unsent_bytes}


def main() -> None:
    endpoint = json.loads(Path(sys.argv[1]).read_text())
    ranks = Ranks(endpoint, int(sys.argv[2]))
    for line in sys.stdin:
        step, _, kind = line.strip().partition(" ")
        told = ranks.until(kind) if step == "until" else ranks.each(step)
        print(json.dumps(told), flush=True)
    os._exit(0)  # its sockets close with it, without a goodbye


if __name__ == "__main__":
    main()
