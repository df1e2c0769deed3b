"""Library frames below the script's own show what a rank waits for; the script's innermost frame is the place."""

from __future__ import annotations

import pytest

from supervisor.core.hangs.library_frames import Activity, Doing, activity_of
from supervisor.core.process_facts import Frame

SITE = "/venv/lib/python3.11/site-packages"
LIB = "/usr/lib/python3.11"
TRAIN = Frame("/app/train.py", "train", 31)
LOAD = Frame("/app/data.py", "Loader.load_batch", 40)
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
LOGGER = Frame(f"{SITE}/torch/distributed/c10d_logger.py", "wrapper", 83)
ALL_REDUCE = Frame(C10D, "all_reduce", 2810)
BACKWARD = (
    Frame(f"{SITE}/torch/_tensor.py", "backward", 600),
    Frame(f"{SITE}/torch/autograd/__init__.py", "backward", 347),
    Frame(f"{SITE}/torch/autograd/graph.py", "_engine_run_backward", 825),
)
DDP = Frame(f"{SITE}/torch/nn/parallel/distributed.py", "forward", 1600)
NEXT = Frame(f"{SITE}/torch/utils/data/dataloader.py", "_try_get_data", 1120)
GET = Frame(f"{LIB}/multiprocessing/queues.py", "get", 113)
WAIT = Frame(f"{LIB}/threading.py", "wait", 327)


@pytest.mark.parametrize(
    ("frames", "wanted"),
    [
        ((TRAIN, LOGGER, ALL_REDUCE), Activity(Doing.WAITS_FOR_RANKS, "all_reduce", "train (train.py:31)")),
        (
            (TRAIN, Frame(C10D, "all_gather_object", 9), LOGGER, Frame(C10D, "all_gather", 5)),
            Activity(Doing.WAITS_FOR_RANKS, "all_gather_object", "train (train.py:31)"),
        ),
        ((TRAIN, *BACKWARD), Activity(Doing.WAITS_FOR_RANKS, "backward", "train (train.py:31)")),
        ((TRAIN, DDP), Activity(Doing.WAITS_FOR_RANKS, "DistributedDataParallel", "train (train.py:31)")),
        # The script's own model, called by DDP, or its own function, called in backward, is not a wait for others.
        ((TRAIN, DDP, LOAD), Activity(Doing.WORKS, "", "Loader.load_batch (data.py:40)", is_bare=True)),
        ((TRAIN, *BACKWARD, LOAD), Activity(Doing.WORKS, "", "Loader.load_batch (data.py:40)", is_bare=True)),
        ((TRAIN, NEXT, GET, WAIT), Activity(Doing.WAITS_FOR_DATA, "_try_get_data", "train (train.py:31)")),
        ((TRAIN, WAIT), Activity(Doing.WAITS_FOR_LOCK, "wait", "train (train.py:31)")),
        ((TRAIN, Frame(f"{LIB}/ssl.py", "read", 9)), Activity(Doing.WORKS, "", "train (train.py:31)")),
        (
            (TRAIN, LOGGER, Frame(C10D, "destroy_process_group", 9)),
            Activity(Doing.ENDS, "destroy_process_group", "train (train.py:31)"),
        ),
        (
            (Frame(f"{LIB}/threading.py", "_shutdown", 1500), Frame(f"{LIB}/threading.py", "join", 9)),
            Activity(Doing.ENDS, "the end of its other threads", "join (threading.py:9)"),
        ),
        ((), None),
    ],
)
def test_what_a_main_thread_does(frames: tuple[Frame, ...], wanted: Activity | None) -> None:
    assert activity_of(frames) == wanted
