# pyright: basic, reportPrivateImportUsage=false, reportArgumentType=false
"""Background threads: one has collectives of its own, and one keeps the process alive if the main thread fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from steps import end, given, load, save, steps


def sum_of(gift: float, group: dist.ProcessGroup | None) -> float:
    tensor = torch.tensor(gift)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group()
    done = threading.Event()
    threading.Thread(target=done.wait, name="lasting").start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    total = load(rank)
    with ThreadPoolExecutor(1, "collectives") as pool:
        for step in steps(rank):
            behind = pool.submit(sum_of, given(step, rank), group)
            found = sum_of(given(step, rank), None)
            assert behind.result() == found
            total += found
            save(rank, step, total)
    end(rank, total)
    dist.destroy_process_group()
    done.set()


if __name__ == "__main__":
    main()
