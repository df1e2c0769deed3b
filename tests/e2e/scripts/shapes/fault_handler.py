# pyright: basic, reportPrivateImportUsage=false
"""faulthandler in all its uses: on a crash, on a signal, and by a watchdog that is moved on in each step."""

import faulthandler
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from steps import end, given, load, save, steps


def main() -> None:
    faulthandler.enable()
    stacks = Path(f"stacks.{os.environ['RANK']}").open("w+")  # noqa: SIM115 - open until the process ends
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = load(rank)
    for step in steps(rank):
        faulthandler.dump_traceback_later(600, exit=True)
        gift = torch.tensor(float(given(step, rank)))
        dist.all_reduce(gift)
        total += gift.item()
        save(rank, step, total)
    faulthandler.cancel_dump_traceback_later()
    os.kill(os.getpid(), signal.SIGUSR2)
    stacks.seek(0)
    assert "in main" in stacks.read()
    end(rank, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
