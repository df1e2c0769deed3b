"""Calls a wrapped function that does nothing, again and again, and tells how long the way in and the way out took."""

from recording import record

import sys  # isort: skip
from typing import Any

import torch.distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]  (as in a training script)
from wrapping import call_wrapped


def nothing(call: Any) -> None:  # noqa: ANN401  (of two products)
    record("entered", call=number)
    record("leaving", call=number)


for number in range(int(sys.argv[1])):
    record("calling", call=number)
    call_wrapped(nothing)
    record("returned", call=number)
