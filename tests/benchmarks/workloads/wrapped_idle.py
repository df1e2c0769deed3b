"""A rank that idles in a wrapped function; bare_idle.py is the same without the Wrapper."""

import torch.distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]  (as in a training script)
from idling import idle
from wrapping import call_wrapped

try:  # what changes in a script that moves over
    from worker_client import inprocess
except ImportError:
    from nvidia_resiliency_ext import inprocess  # pyright: ignore

call_wrapped(inprocess, idle)
