"""A rank for test_abort.py: many rounds of pending collectives, aborted while everything else in the process goes on.

argv: rank, world size, port of the store (0: serve it and print the port). Prints one JSON object at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import select
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from worker_client.inprocess.abort import AbortTorchDistributed
from worker_client.inprocess.state import State

dist: Any = importlib.import_module("torch.distributed")  # partly typed
ROUNDS = 20
TIMEOUT_S = 30.0
LOOP_NAME = "gloo_tcp_loop"


class Bystanders:
    """Other things in a training process: an event loop's server, a Python epoll, and plain connections."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serve = asyncio.start_server(self._echo, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serve, self._loop).result(TIMEOUT_S)
        self._address = self._server.sockets[0].getsockname()
        self._kept = socket.create_connection(self._address, TIMEOUT_S)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connected = socket.create_connection(self._listener.getsockname(), TIMEOUT_S)
        self._accepted, _ = self._listener.accept()
        self._epoll = select.epoll()
        for item in (self._listener, self._connected, self._accepted):
            self._epoll.register(item)
        self._may_churn = threading.Event()
        self._churn: threading.Thread | None = None

    def start_churn(self) -> None:
        """Opens and closes connections continuously, so that descriptor numbers are reused all the time."""
        self._may_churn.set()
        self._churn = threading.Thread(target=self._run_churn, daemon=True)
        self._churn.start()

    def stop_churn(self) -> None:
        assert self._churn is not None
        self._may_churn.clear()
        self._churn.join()

    def check(self) -> None:
        """Checks that each earlier connection still carries bytes."""
        self._exchange(self._kept)
        self._connected.sendall(b"there")
        if self._accepted.recv(5) != b"there":
            self.errors.append("a plain connection ended")
        with socket.create_connection(self._listener.getsockname(), TIMEOUT_S):
            self._listener.accept()[0].close()

    def _run_churn(self) -> None:
        while self._may_churn.is_set():
            try:
                with socket.create_connection(self._address, TIMEOUT_S) as connection:
                    self._exchange(connection)
            except OSError as error:
                self.errors.append(repr(error))

    def _exchange(self, connection: socket.socket) -> None:
        connection.sendall(b"ping")
        if connection.recv(4) != b"ping":
            self.errors.append("a connection of the event loop ended")

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                writer.write(await reader.readexactly(4))
        writer.close()


def _loop_threads() -> list[Path]:
    return [path for path in Path("/proc/self/task").glob("*/comm") if path.read_text().strip() == LOOP_NAME]


def _one_round(number: int, rank: int, world_size: int, store: Any, bystanders: Bystanders) -> dict[str, Any]:  # noqa: ANN401
    dist.init_process_group("gloo", store=dist.PrefixStore(f"round{number}", store), rank=rank, world_size=world_size)
    groups = [dist.new_group(list(range(world_size))), dist.new_group([0, 1])]
    dist.barrier(groups[0])
    has_named_loops = bool(_loop_threads())
    if number % 2:  # like older versions of torch, which give the thread no name of its own
        for path in _loop_threads():
            path.write_text("python")
    bystanders.start_churn()
    told: dict[str, Any] = {"has_named_loops": has_named_loops, "errors": []}

    def abort() -> None:
        told["aborted_at"] = monotonic()
        AbortTorchDistributed()(State(rank, world_size, iteration=number).freeze())

    if rank == world_size - 1:  # it lives, and joins no collective
        store.wait([f"pending{number}/{other}" for other in range(world_size - 1)], timedelta(seconds=TIMEOUT_S))
        abort()
    else:
        works = [
            dist.all_reduce(torch.ones(1000), async_op=True),
            dist.all_reduce(torch.ones(9), group=groups[0], async_op=True),
        ]
        told["was_pending"] = not any(work.is_completed() for work in works)
        store.set(f"pending{number}/{rank}", "")
        store.wait([f"pending{number}/{other}" for other in range(world_size - 1)], timedelta(seconds=TIMEOUT_S))
        thread = threading.Thread(target=abort)
        thread.start()
        while works:
            try:
                works.pop(0).wait()
            except RuntimeError as error:
                told["errors"].append(str(error))
            told["released_at"] = monotonic()
        thread.join()
    told["is_initialized"] = dist.is_initialized()
    del groups
    bystanders.stop_churn()
    bystanders.check()
    return told


def _held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _settled(descriptors_max: int, threads_max: int) -> tuple[int, int]:
    """Returns the counts after threads and connections of the last round have ended."""
    deadline = monotonic() + TIMEOUT_S
    while monotonic() < deadline:
        descriptors, threads = _held()
        if descriptors <= descriptors_max and threads <= threads_max:
            break
        threading.Event().wait(0.01)
    return _held()


def main() -> None:
    rank, world_size, port = map(int, sys.argv[1:])
    store = dist.TCPStore("127.0.0.1", port, is_master=port == 0, timeout=timedelta(seconds=TIMEOUT_S))
    if port == 0:
        print(store.port, flush=True)
    bystanders = Bystanders()
    rounds: list[dict[str, Any]] = []
    held: list[tuple[int, int]] = []
    for number in range(ROUNDS):
        rounds.append(_one_round(number, rank, world_size, store, bystanders))
        store.set(f"round{number}/{rank}", "")
        store.wait([f"round{number}/{other}" for other in range(world_size)], timedelta(seconds=TIMEOUT_S))
        held.append(_held())
    held.append(_settled(min(descriptors for descriptors, _ in held[:3]), min(threads for _, threads in held[:3])))
    told = {"rank": rank, "rounds": rounds, "held": held, "bystanders": bystanders.errors}
    if rank == 0:  # it serves the store to the end
        store.wait([f"told/{other}" for other in range(1, world_size)], timedelta(seconds=TIMEOUT_S))
    else:
        store.set(f"told/{rank}", "")
    print(json.dumps(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
