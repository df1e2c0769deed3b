# pyright: basic
"""The model of train.py, imported by its bare name, as files beside a script are."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass
class Shape:
    width: int
    block_size: int


class ByteModel(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.wte = torch.nn.Embedding(256, shape.width)
        self.wpe = torch.nn.Embedding(shape.block_size, shape.width)
        self.head = torch.nn.Linear(shape.width, 256, bias=False)

    def forward(self, x, y):
        hidden = self.wte(x) + self.wpe(torch.arange(x.size(1)))
        return F.cross_entropy(self.head(torch.tanh(hidden)).flatten(0, 1), y.flatten())
