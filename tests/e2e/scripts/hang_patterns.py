"""Three ranks that train together; in each cycle rank 1 makes the others wait in another way, through torch."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import torch
from torch import distributed

from worker_client import RankMonitorClient

RANK = int(os.environ["RANK"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
CULPRIT = 1
LATER_S = 0.1  # the culprit beats last by this much: the others fall silent first
ALWAYS_S = 600.0


def load_batch() -> None:
    time.sleep(ALWAYS_S)


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stick() -> None:
    """Until its child has executed a program it waits in the kernel; and that child waits for a writer."""
    os.mkfifo(f"fifo{CYCLE}")
    never = (os.POSIX_SPAWN_OPEN, 0, f"fifo{CYCLE}", os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[never])


def deadlock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def lose_loader() -> None:
    batches = multiprocessing.get_context("fork").SimpleQueue()
    if os.fork() == 0:
        os._exit(1)
    batches.get()


def hold() -> None:
    ctypes.PyDLL(None).sleep(int(ALWAYS_S))


def leave() -> None:
    threading.Thread(target=time.sleep, args=(ALWAYS_S,)).start()
    sys.exit(0)


def mismatch() -> None:
    distributed.barrier()  # pyright: ignore[reportUnknownMemberType]


PATTERNS = (freeze, stick, deadlock, lose_loader, hold, leave, mismatch, load_batch)


def train(client: RankMonitorClient) -> None:
    gradient = torch.ones(4)
    for step in range(4):
        client.send_heartbeat()
        if step == 3 and RANK == CULPRIT:
            time.sleep(LATER_S)
            client.send_heartbeat()
            PATTERNS[CYCLE]()
        distributed.all_reduce(gradient)  # pyright: ignore[reportUnknownMemberType]


def main() -> None:
    if len(PATTERNS) <= CYCLE:
        return
    if RANK == 0:
        with open(os.environ["ITERATION_FILE"], "w") as file:
            file.write(str(CYCLE + 1))  # progress, so that no back-off delays the test
    distributed.init_process_group("gloo")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    train(client)


main()
