"""A script with torch: a gloo barrier, then a rank ends while the others wait for it; the next cycle ends well.

That rank is rank 1, or BENCH_FAULT_RANK.
"""

from recording import CYCLE, RANK, STARTED_NS, await_go, note_fault, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line)
import signal  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

record("imported")
dist.init_process_group("gloo")
record("group")
dist.barrier()  # pyright: ignore[reportUnknownMemberType]
record("barrier")
if CYCLE == 0:
    if int(os.environ.get("BENCH_FAULT_RANK", "1")) == RANK:
        await_go()
        note_fault()
        record("fault")
        if "--exit" in sys.argv:
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # pyright: ignore[reportUnknownMemberType]
count = torch.ones(1)
dist.all_reduce(count)  # pyright: ignore[reportUnknownMemberType]
if int(count) != dist.get_world_size():
    sys.exit(f"cannot trust the group: {int(count)} ranks of {dist.get_world_size()} answered")
record("reduced")
dist.destroy_process_group()
