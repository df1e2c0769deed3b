"""What is the largest value on any rank?

Collective: every rank of the default group must call at the same point. Only this module loads torch, and only if the
script has already loaded torch.distributed or there is more than one rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker_client.errors import RankMonitorClientError

if TYPE_CHECKING:
    import torch


def global_rank() -> int | None:
    """Returns this rank's number in the default process group; None if there is none. Loads nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())


def maxima(values: Sequence[float]) -> list[float]:
    """Returns elementwise maxima over the ranks of the default group; the values themselves if this is the only rank.

    Blocks until all ranks have called. Raises RankMonitorClientError if there are several ranks and no group.
    """
    if global_rank() is None:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return list(values)
        raise RankMonitorClientError(
            "cannot calculate timeouts: torch.distributed is not initialised; call init_process_group() first"
        )
    return _reduce(values)


def _reduce(values: Sequence[float]) -> list[float]:
    import torch
    from torch import distributed

    tensor = torch.tensor(values, dtype=torch.float64, device=_device(distributed.get_backend_config()))
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)  # pyright: ignore[reportUnknownMemberType]
    return [float(value) for value in tensor.cpu()]


def _device(backend_config: str) -> torch.device:
    """Returns the default group's device, the CPU if possible; `backend_config` is torch's "cpu:gloo,cuda:nccl"."""
    import torch

    devices = dict(entry.split(":", 1) for entry in backend_config.split(",") if ":" in entry)
    if "cpu" in devices or not devices:
        return torch.device("cpu")
    if "cuda" in devices:
        return _bound_device() or torch.device("cuda", _used_gpu())
    return torch.device(next(iter(devices)))


def _bound_device() -> torch.device | None:
    """Returns the device that the script gave to init_process_group(device_id=…); None if it gave none."""
    from torch import distributed

    return getattr(distributed.group.WORLD, "bound_device_id", None)


def _used_gpu() -> int:
    """Returns the number of the GPU that this rank computes on.

    It is the current one, unless the script has never chosen one: then all tensors may lie on the GPU LOCAL_RANK.
    """
    from torch import cuda

    current, local = cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    if not local.isdecimal() or int(local) >= cuda.device_count():
        return current
    try:
        is_local = cuda.memory_reserved(int(local)) > 0 and cuda.memory_reserved(current) == 0
    except RuntimeError:  # an allocator of the script's own, which may not count
        return current
    return int(local) if is_local else current
