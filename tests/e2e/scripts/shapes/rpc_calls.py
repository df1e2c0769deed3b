# pyright: basic, reportPrivateImportUsage=false
"""RPC: rank 0 calls functions of rank 1, whose main thread only waits for the end."""

import os

from steps import end, given, load, save, steps, strike
from torch.distributed import rpc

RANK = int(os.environ["RANK"])
totals: list[float] = []


def give(step: int) -> int:
    strike(RANK, step, os.getpid())
    totals.append(totals[-1] + given(step, 0) + given(step, 1))
    save(RANK, step, totals[-1])
    return given(step, RANK)


def main() -> None:
    totals.append(load(RANK))
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))
    if RANK == 0:
        for step in steps(RANK):
            totals.append(totals[-1] + given(step, 0) + rpc.rpc_async("worker1", give, (step,)).wait())
            save(RANK, step, totals[-1])
    rpc.shutdown()
    end(RANK, totals[-1])


if __name__ == "__main__":
    main()
