"""Does this process use CUDA, and how does another thread use the same device?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def on_current_device(run: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `run` for another thread, bound to this thread's CUDA device if the process uses CUDA."""
    cuda = cuda_in_use()
    if cuda is None:
        return run
    device = cuda.current_device()

    def run_on_device() -> Any:  # noqa: ANN401  # whatever `run` returns
        cuda.set_device(device)
        return run()

    return run_on_device


def cuda_in_use() -> Any:  # noqa: ANN401  # torch.cuda is not imported just to find out
    """Returns torch.cuda if this process has initialised it, else None. Never imports torch."""
    cuda = sys.modules.get("torch.cuda")
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None
