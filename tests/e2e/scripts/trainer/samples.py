"""Samples for a training; in a module of their own, so that the loaders' processes need no torch.distributed."""

import torch
from torch.utils.data import Dataset


class Numbers(Dataset[torch.Tensor]):
    """Numbers from 0 to 1 without randomness."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / self._count)
