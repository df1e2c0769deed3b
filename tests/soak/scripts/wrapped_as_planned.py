"""A wrapped function that each rank in turn leaves by an exception, once in each iteration but the last."""

import json
import os
import random
import time
from typing import cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper

RANK, LAST = int(os.environ["RANK"]), int(os.environ["LAST_CYCLE"])
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps({"what": what, "rank": RANK, **more}) + "\n").encode())
    os.close(descriptor)


@inprocess.Wrapper()
def train(call: CallWrapper = INJECTED) -> int:
    note("fn", iteration=call.iteration)
    os.write(1, f"said {call.iteration} {RANK} 0.\nlast {call.iteration} {RANK} 1.\n".encode())
    if call.iteration >= LAST:
        return call.iteration
    if call.iteration % int(os.environ["WORLD_SIZE"]) == RANK:
        time.sleep(random.uniform(0, 0.5))
        raise ValueError("by intention")
    while True:
        time.sleep(0.001)


note("started", cycle=int(os.environ["TORCHELASTIC_RESTART_COUNT"]), pid=os.getpid())
note("returned", value=train())
