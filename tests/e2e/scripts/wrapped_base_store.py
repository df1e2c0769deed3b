"""A function that keeps a value in the store that its Wrapper opens by default; rank 0 is killed in iteration 0."""

from __future__ import annotations

import os
import signal
import time
from typing import cast

from worker_client import inprocess

FOR_EVER_S = 3600.0
INJECTED = cast("inprocess.CallWrapper", None)  # replaced by the Wrapper


@inprocess.Wrapper()
def train(call: inprocess.CallWrapper = INJECTED) -> None:
    base, rank = call.base_store, os.environ["RANK"]
    if call.iteration == 0:
        base.set(f"word of {rank}", "from iteration 0")
        call.store.set("of the iteration", "")
        base.wait(["word of 0", "word of 1"])
        if rank == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOR_EVER_S)
    words = [base.get(f"word of {each}").decode() for each in (0, 1)]
    fresh = not call.store.check(["of the iteration"])
    os.write(1, f"rank {rank} reads {words}, fresh: {fresh}\n".encode())  # at once: print() writes a line's end apart


train()
