# pyright: basic
"""Samples for train.py, read by the loaders' processes."""

import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        picked = torch.Generator().manual_seed(index)
        return torch.rand(1, 6, 6, generator=picked), index % 3
