# pyright: basic, reportPrivateImportUsage=false
"""Each rank starts a daemon, as a daemon detaches itself, and never ends it."""

import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from steps import CYCLE, end, given, load, save, say, steps


def daemonise(rank: int) -> None:
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 1024)
    time.sleep(600)
    os._exit(rank)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    earlier = [int(path.read_text()) for path in Path().glob("daemon.*") if not path.name.endswith(f".{CYCLE}")]
    say(f"rank {rank} finds daemons of earlier attempts: {sum(map(is_alive, earlier))}")
    total = load(rank)
    daemonise(rank)
    for step in steps(rank):
        gift = torch.tensor(float(given(step, rank)))
        dist.all_reduce(gift)
        total += gift.item()
        save(rank, step, total)
    end(rank, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
