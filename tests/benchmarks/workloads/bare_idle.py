"""A rank that idles; wrapped_idle.py is the same in a wrapped function."""

import torch.distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]  (as in a training script)
from idling import idle

idle(None)
