"""Which iteration is the training framework at, if it counts them itself?"""

from __future__ import annotations

import sys

MEGATRON_MODULE = "megatron.training.global_vars"


def current() -> int | None:
    """Returns Megatron's own counter; None if Megatron isn't loaded or hasn't begun to count. Imports nothing."""
    module = sys.modules.get(MEGATRON_MODULE)
    if module is None:
        return None
    arguments = getattr(module, "_GLOBAL_ARGS", None)
    iteration = getattr(arguments, "curr_iteration", None)
    if iteration is None:
        iteration = getattr(arguments, "iteration", None)
    return iteration if isinstance(iteration, int) else None
