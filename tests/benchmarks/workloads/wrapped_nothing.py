"""Calls a wrapped function that does nothing, again and again; reports how long the way in and the way out took."""

from recording import record

import sys  # isort: skip
from typing import Any

import torch.distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]  (as in a training script)
from wrapping import call_wrapped

try:  # what changes in a script that moves over
    from worker_client import inprocess
except ImportError:
    from nvidia_resiliency_ext import inprocess  # pyright: ignore


def nothing(call: Any) -> None:  # noqa: ANN401  (of two products)
    record("entered", call=number)
    record("leaving", call=number)


for number in range(int(sys.argv[1])):
    record("calling", call=number)
    call_wrapped(inprocess, nothing)
    record("returned", call=number)
