"""Ranks wait inside C++ for one, mostly rank 1, that fails before it comes. argv: the place, the fault, how often.

Meanwhile, a thread of each rank keeps a connection to ECHO_PORT.
"""
# pyright: basic, reportPrivateImportUsage=false

import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from worker_client import inprocess

RANK = int(os.environ["RANK"])
PLACE, FAULT, TIMES = sys.argv[1], sys.argv[2], int(sys.argv[3])
PATIENCE = timedelta(minutes=20)
WAIT_S = 60.0
FEW_TIMES = 10


def faulty(iteration: int) -> int:
    """Returns rank 1, or for many faults rank 3 in turn: if only one rank fails, iterations have pauses."""
    if PLACE == "server":
        return 0
    return 1 if TIMES <= FEW_TIMES else (1, 3)[iteration % 2]


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


class Bystander:
    """A connection to another server on this host, opened while the wrapped function runs."""

    def __init__(self) -> None:
        self.is_kept = True
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with socket.create_connection(("127.0.0.1", int(os.environ["ECHO_PORT"]))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as for a store
            while self.is_kept and not self._is_over.wait(0.01):
                connection.sendall(b"x")
                self.is_kept = connection.recv(1) == b"x"

    def end(self) -> bool:
        """Returns whether the connection lasted to the end."""
        self._is_over.set()
        self._thread.join()
        return self.is_kept


def fail(iteration: int) -> None:
    """Fails once all others have noted that they are about to wait."""
    deadline_s = time.monotonic() + WAIT_S
    told = f'"what": "waits in {iteration}"'
    while Path(os.environ["TRACE"]).read_text().count(told) < int(os.environ["WORLD_SIZE"]) - 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    time.sleep(0.02)  # most are inside by then; it must not matter
    note("fault", iteration=iteration)
    if FAULT == "kill":
        os.kill(os.getpid(), 9)
    raise ValueError("by intention")


def wait(iteration: int) -> None:
    match PLACE:
        case "init" | "server":
            note(f"waits in {iteration}")
            dist.init_process_group("gloo", timeout=PATIENCE)
        case "group":
            dist.init_process_group("gloo", timeout=PATIENCE)
            dist.new_group([0, 2])
            note(f"waits in {iteration}")
            dist.new_group()
        case "own":
            port = int(os.environ["MASTER_PORT"]) + 2 + iteration
            store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=RANK == 0, timeout=PATIENCE)
            note(f"waits in {iteration}")
            store.wait(["what nobody sets"])
    raise AssertionError("it did not wait for the faulty rank")


bystanders: list[Bystander] = []


@inprocess.Wrapper()
def train(call: inprocess.CallWrapper | None = None) -> None:
    assert call is not None
    if not bystanders:
        bystanders.append(Bystander())
    note("fn", iteration=call.iteration, descriptors=len(os.listdir("/proc/self/fd")))
    if call.iteration < TIMES:
        if faulty(call.iteration) != RANK:
            wait(call.iteration)
        if PLACE == "group":
            dist.init_process_group("gloo", timeout=PATIENCE)
            dist.new_group([0, 2])
        fail(call.iteration)
    dist.init_process_group("gloo", timeout=PATIENCE)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == int(os.environ["WORLD_SIZE"])
    dist.barrier()
    dist.destroy_process_group()


train()
note("returned", is_kept=bystanders[0].end())
