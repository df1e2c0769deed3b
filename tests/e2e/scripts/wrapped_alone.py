"""A function under the Wrapper that obeys the files in the folder ORDERS, one by one, until there is one `end`.

STORE_FILE: ranks meet in a store of this script's own, in that file. PER_NODE: that many ranks of one node are active,
and those of the other nodes are in reserve, as whole nodes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper
from worker_client.inprocess.rank_assignment import Layer, LayerFlag, Tree
from worker_client.inprocess.store import FileStore

RANK = int(os.environ["RANK"])
ORDERS = Path(os.environ["ORDERS"])
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
FOR_EVER_S = 3600.0
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def is_ordered(what: str) -> bool:
    """Returns True once for each time that it is ordered."""
    try:
        ORDERS.joinpath(f"{what}-{RANK}").unlink()
    except FileNotFoundError:
        return False
    return True


class StoreOfOurs(FileStore):
    """A store that the script itself provides."""


def settings() -> dict[str, Any]:
    more: dict[str, Any] = {}
    if path := os.environ.get("STORE_FILE"):
        more |= {"store_factory": StoreOfOurs, "store_kwargs": {"path": path}}
    if most := int(os.environ.get("PER_NODE", "0")):
        node = os.environ["SLURM_NODEID"]
        root = Layer(max_ranks=most, flag=LayerFlag.RESERVE)
        of_node = Layer(min_ranks=most, max_ranks=most, key_or_fn=node, flag=LayerFlag.RESERVE)
        more["rank_assignment"] = Tree([root, of_node])
    return more


@inprocess.Wrapper(
    **settings(),
    soft_timeout=timedelta(seconds=4),
    hard_timeout=timedelta(seconds=8),
    termination_grace_time=timedelta(seconds=0.5),
    heartbeat_timeout=timedelta(seconds=float(os.environ.get("HEARTBEAT_TIMEOUT_S", "30"))),
)
def train(call: CallWrapper = INJECTED) -> int:
    note("fn", iteration=call.iteration, as_rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
    while not ORDERS.joinpath("end").exists():
        time.sleep(0.002)
        if is_ordered("answer"):
            note("answer", iteration=call.iteration)
        if is_ordered("fail"):
            raise ValueError("by intention")
        if is_ordered("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_ordered("hang"):
            time.sleep(FOR_EVER_S)
    return RANK


for _ in range(CALLS):
    note("returned", value=train())
