# pyright: basic, reportPrivateImportUsage=false
"""Handlers of signals: SIGTERM saves and leaves with code 0, SIGUSR1 counts, SIGALRM comes all the time."""

import os
import signal
import sys
import time
from types import FrameType

import torch
import torch.distributed as dist
from steps import end, given, load, save, say, steps

counts = {signal.SIGUSR1: 0, signal.SIGALRM: 0}


def count(number: int, _frame: FrameType | None) -> None:
    counts[signal.Signals(number)] += 1


def leave(_number: int, _frame: FrameType | None) -> None:
    say(f"rank {os.environ['RANK']} leaves")
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in counts:
        signal.signal(number, count)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = load(rank)
    for step in steps(rank):
        counts[signal.SIGUSR1] = 0
        for number in (signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        gift = torch.tensor(float(given(step, rank)))
        work = dist.all_reduce(gift, async_op=True)
        assert work is not None
        while not work.is_completed():  # a handler runs only between two lines of Python
            time.sleep(0.005)
        work.wait()
        assert counts[signal.SIGUSR1] == 1
        total += gift.item()
        save(rank, step, total)
    before = counts[signal.SIGALRM]
    while counts[signal.SIGALRM] == before:
        signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)  # Python's own handlers end before the process does
    end(rank, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
