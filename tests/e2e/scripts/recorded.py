# pyright: basic, reportPrivateImportUsage=false
"""A gloo job in which rank 1 raises and exits slowly; meanwhile rank 0 dies of the lost connection."""

import atexit
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def leave_slowly() -> None:
    dist.destroy_process_group()
    sys.stderr.flush()
    time.sleep(30)


@record
def main() -> None:
    dist.init_process_group("gloo")
    atexit.register(leave_slowly)
    if dist.get_rank() == 1:
        raise ZeroDivisionError("the batch has no samples")
    atexit.unregister(leave_slowly)
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
