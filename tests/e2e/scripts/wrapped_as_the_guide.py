"""A function with everything from the usage guide combined; rank 3 is killed in iteration 0."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path
from typing import cast

from worker_client import inprocess

FOR_EVER_S = 3600.0
INJECTED = cast("inprocess.CallWrapper", None)  # replaced by the Wrapper
GROUP, DIVISOR, ACTIVE_MAX = 2, 2, 4

GROUPS_STAY_WHOLE = inprocess.Compose(
    inprocess.rank_assignment.ActivateAllRanks(),
    inprocess.rank_assignment.ShiftRanks(),
    inprocess.rank_assignment.FilterCountGroupedByKey(
        key_or_fn=lambda state: str(state.rank // GROUP),
        condition=lambda count: count == GROUP,
    ),
)
SOME_STAY_IN_RESERVE = inprocess.Compose(
    inprocess.rank_assignment.ActiveWorldSizeDivisibleBy(DIVISOR),
    inprocess.rank_assignment.MaxActiveWorldSize(ACTIVE_MAX),
    inprocess.rank_assignment.ShiftRanks(),
)
TREE = inprocess.rank_assignment.Tree(
    [
        inprocess.rank_assignment.Layer(
            min_ranks=2, max_ranks=4, key_or_fn="root", flag=inprocess.rank_assignment.LayerFlag.RESERVE
        ),
        inprocess.rank_assignment.Layer(
            min_ranks=GROUP,
            max_ranks=GROUP,
            key_or_fn=lambda state: str(state.rank // GROUP),
            flag=inprocess.rank_assignment.LayerFlag.RESERVE,
        ),
    ]
)


@inprocess.Wrapper(
    store_kwargs={"timeout": datetime.timedelta(seconds=60)},
    initialize=inprocess.Compose(
        inprocess.nested_restarter.NestedRestarterHandlingCompleted(),
        inprocess.initialize.RetryController(max_iterations=3, min_world_size=2),
    ),
    abort=inprocess.Compose(
        inprocess.abort.AbortTransformerEngine(),
        inprocess.abort.AbortTorchDistributed(),
    ),
    health_check=inprocess.health_check.CudaHealthCheck(),
    rank_assignment={"groups": GROUPS_STAY_WHOLE, "reserve": SOME_STAY_IN_RESERVE, "tree": TREE}[sys.argv[1]],
    soft_timeout=datetime.timedelta(seconds=60),
    hard_timeout=datetime.timedelta(seconds=90),
    termination_grace_time=datetime.timedelta(seconds=0),
)
def train(call_wrapper: inprocess.CallWrapper = INJECTED) -> str:
    call_wrapper.ping()
    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    with call_wrapper.atomic():
        print(f"iteration {call_wrapper.iteration}: {rank} of {world_size}", flush=True)
    if call_wrapper.iteration == 0:
        Path(f"begun-{rank}").touch()
        if rank == "3":
            while len(list(Path().glob("begun-*"))) < ACTIVE_MAX:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOR_EVER_S)
    return rank


try:
    print(f"returned {train()}", flush=True)  # in one write: other ranks print meanwhile
except inprocess.rank_assignment.RankDiscarded:
    print("discarded", flush=True)
