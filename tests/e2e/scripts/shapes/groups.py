# pyright: basic, reportPrivateImportUsage=false, reportArgumentType=false
"""Several process groups, and collectives of several at once, one of them with a backend and a limit of its own."""

from datetime import timedelta

import torch
import torch.distributed as dist
from steps import end, given, load, save, steps


def main() -> None:
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1], timeout=timedelta(seconds=90))
    control = dist.new_group(backend="gloo", group_desc="control")
    own, _ = dist.new_subgroups(group_size=1)
    total = load(rank)
    for step in steps(rank):
        gifts = [torch.tensor(float(given(step, rank))) for _ in range(3)]
        works = [dist.all_reduce(gifts[0], async_op=True), dist.all_reduce(gifts[1], group=pair, async_op=True)]
        dist.all_reduce(gifts[2], group=own)
        for work in works:
            assert work is not None
            work.wait()
        assert gifts[2].item() == given(step, rank)
        found: list[object] = [None, None]
        dist.all_gather_object(found, gifts[0].item(), group=control)
        assert found == [gifts[1].item()] * 2
        dist.monitored_barrier(control, timeout=timedelta(seconds=60))
        total += gifts[0].item()
        save(rank, step, total)
    end(rank, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
