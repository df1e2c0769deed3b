"""A rank that trains without torch: in each step all ranks meet at rank 0, as in an all_reduce. argv: folder, pace.

A thread stamps that this process is alive, step or not: two groups of one job must never be alive at once. A rank that
loses the others waits for them without end, as in a collective that has no timeout. With the file `ring`, they meet in
a ring instead. Ends well when the file `end` is there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from worker_client import RankMonitorClient

FOLDER, PACE_S = Path(sys.argv[1]), float(sys.argv[2])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
NODE = os.uname().nodename
ALIVE_EVERY_S = 0.02
PORTS_AFTER_STORE = 7  # the ports after the store's are free, too
CHECKPOINT = FOLDER / "checkpoint"
IN_A_RING = (FOLDER / "ring").exists()
GO, END = b"g", b"e"


class Stamps:
    """The events of this process: lines `alive|step nanoseconds number`."""

    def __init__(self) -> None:
        name = f"{CYCLE}-{RANK}-{NODE}-{os.getpid()}"
        self._file = (FOLDER / "stamps" / name).open("a", buffering=1)
        self._lock = threading.Lock()

    def put(self, what: str, number: int = 0) -> None:
        with self._lock:
            self._file.write(f"{what} {time.monotonic_ns()} {number}\n")

    def keep_alive(self) -> None:
        while True:
            self.put("alive")
            time.sleep(ALIVE_EVERY_S)


def address_of(node: str) -> tuple[str, int]:
    return node, int(os.environ["MASTER_PORT"]) + PORTS_AFTER_STORE


def meet() -> list[socket.socket]:
    """Returns the sockets to all others on rank 0, to rank 0 on the others."""
    address = address_of(os.environ["MASTER_ADDR"])
    if RANK == 0:
        with socket.create_server(address, backlog=WORLD_SIZE) as server:
            return [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
    return [connection(address)]


def meet_in_ring() -> list[socket.socket]:
    """Returns the sockets to the rank before this one and to the next one."""
    with socket.create_server(address_of(NODE)) as server:
        following = connection(address_of(node_of((RANK + 1) % WORLD_SIZE)))
        return [server.accept()[0], following]


def node_of(rank: int) -> str:
    """Returns the node of a rank of this cycle, once it has stamped."""
    while True:
        for path in (FOLDER / "stamps").glob(f"{CYCLE}-{rank}-*"):
            return path.name.split("-")[2]
        time.sleep(0.01)


def connection(address: tuple[str, int]) -> socket.socket:
    """Returns one, as soon as somebody listens there."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.01)


def all_meet(others: list[socket.socket]) -> bool:
    """Waits until every rank has come to this step; returns whether there is another one."""
    if RANK:
        say(others[0], GO)
        return heard_from(others[0]) == GO
    for other in others:
        heard_from(other)
    word = next_word()
    for other in others:
        say(other, word)
    return word == GO


def ring_meets(neighbours: list[socket.socket]) -> bool:
    """Waits until a word has gone around; returns whether there is another step."""
    before, following = neighbours
    word = heard_from(before) if RANK else next_word()
    say(following, word)
    if not RANK:
        heard_from(before)
    return word == GO


def next_word() -> bytes:
    return END if (FOLDER / "end").exists() else GO


def say(other: socket.socket, word: bytes) -> None:
    with suppress(OSError):
        other.sendall(word)


def heard_from(other: socket.socket) -> bytes:
    with suppress(OSError):
        if word := other.recv(1):
            return word
    while True:
        signal.pause()


def save(step: int) -> None:
    beside = CHECKPOINT.with_suffix(f".{os.getpid()}-{CYCLE}")
    beside.write_text(str(step))
    beside.replace(CHECKPOINT)


def main() -> None:
    stamps = Stamps()
    stamps.put("alive")
    threading.Thread(target=stamps.keep_alive, daemon=True).start()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    others, meets = (meet_in_ring(), ring_meets) if IN_A_RING else (meet(), all_meet)
    while meets(others):
        step += 1
        client.send_heartbeat()
        stamps.put("step", step)
        if RANK == 0:
            save(step)
        order = FOLDER / f"order-{RANK}"  # a test's order for this rank, once
        if order.exists():
            what = order.read_text()
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        time.sleep(PACE_S)
    client.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
