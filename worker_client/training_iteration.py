"""Which iteration is the training framework at, where it keeps count itself?"""

from __future__ import annotations

import sys

MEGATRON_MODULE = "megatron.training.global_vars"


def current() -> int | None:
    """Megatron's own counter; None where Megatron isn't loaded or hasn't started to count. Imports nothing."""
    module = sys.modules.get(MEGATRON_MODULE)
    if module is None:
        return None
    arguments = getattr(module, "_GLOBAL_ARGS", None)
    iteration = getattr(arguments, "curr_iteration", None)
    if iteration is None:
        iteration = getattr(arguments, "iteration", None)
    return iteration if isinstance(iteration, int) else None
