"""Says what a rank sees of its launcher, and when its first collective was done. argv: the rank that fails after it.

The others wait for it in a collective, as in training.
"""

# pyright: reportUnknownMemberType=false
import json
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(os.environ["RANK"]))
dist.all_reduce(total)
line = json.dumps({"at_unix": time.time(), "total": total.item(), "environment": dict(os.environ)})
os.write(1, f"{line}\n".encode())
dist.barrier()
if len(sys.argv) > 1:
    if sys.argv[1] == os.environ["RANK"]:
        os._exit(3)
    dist.barrier()
os._exit(0)  # a group of gloo's hangs now and then while it is destroyed
