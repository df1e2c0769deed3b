"""Which fault does a training simulate in its first cycle, as parameters of a callback say?"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Mapping
from typing import cast

from worker_client.guarded_log import GuardedLog
from worker_client.job_nodes import NO_RANK

KINDS = {"rank_killed": signal.SIGKILL, "rank_hung": signal.SIGSTOP}
NAMES = ("fault_type", "base_delay", "rand_delay", "rank_to_fail")

log = GuardedLog("holdfast")


def simulate(params: object) -> threading.Timer | None:
    """Ends or stops one rank after `base_delay` + at most `rand_delay` seconds. Call it on every rank.

    `params`: a mapping or an object with `fault_type` ("rank_killed", "rank_hung" or "random") and `base_delay`,
    perhaps with `rand_delay` and `rank_to_fail` (default: any, the same on all ranks). Returns the timer on that rank,
    else None; None in every cycle but the first, which would otherwise fail again and again. Raises ValueError.
    """
    given = cast("Mapping[str, object]", params if isinstance(params, Mapping) else vars(params))
    if unknown := sorted(set(given) - set(NAMES)):
        raise ValueError(f"cannot simulate a fault: there is no parameter {unknown[0]!r}; use {', '.join(NAMES)}")
    environ = os.environ
    draw = random.Random(environ.get("TORCHELASTIC_RUN_ID", ""))  # alike on all ranks
    rank_to_fail, kind = given.get("rank_to_fail"), given.get("fault_type")
    any_rank, any_kind = draw.randrange(int(environ.get("WORLD_SIZE", "1"))), draw.choice(sorted(KINDS))
    number = KINDS.get(any_kind if kind == "random" else str(kind))
    if number is None:
        raise ValueError(f"cannot simulate a fault: its type is {kind!r}; use {', '.join(KINDS)} or random")
    delay_s = _seconds(given, "base_delay") + draw.random() * _seconds({"rand_delay": 0.0, **given}, "rand_delay")
    is_first = environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    rank = environ.get("RANK", "0")
    is_chosen = rank != NO_RANK and int(rank) == (any_rank if rank_to_fail is None else rank_to_fail)
    if not is_first or not is_chosen:
        return None
    log.warning("a fault is simulated: %s to this rank in %.1f s", number.name, delay_s)
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    return timer


def _seconds(given: Mapping[str, object], name: str) -> float:
    value = given.get(name)
    if not isinstance(value, int | float) or value < 0:
        raise ValueError(f"cannot simulate a fault: {name} is {value!r}; give a number of seconds")
    return float(value)
