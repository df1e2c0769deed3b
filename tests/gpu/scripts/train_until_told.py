"""Trains a language model of about 100 million parameters in bf16 until the file `end` exists (row 9).

It continues from its checkpoint, and writes the loss of each step to TRACE. Any launcher can start it. With DEVICE=cpu
it trains a tiny model, which tests this script.
"""
# pyright: basic, reportPrivateImportUsage=false

import json
import os
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

DEVICE = os.environ["DEVICE"]
FOLDER = Path(sys.argv[1])
WIDTH, LAYERS, HEADS, CONTEXT, BATCH = (768, 14, 12, 256, 16) if DEVICE == "cuda" else (32, 2, 2, 32, 4)
TYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
CHECKPOINT_EVERY_STEPS = 20


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device, dtype=TYPE)
        return self.head(self.layers(self.bytes(text) + self.places, mask=mask, is_causal=True))


def batches() -> torch.Tensor:
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)[:1_000_000]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: torch.Tensor, step: int) -> torch.Tensor:
    """Returns the same batch for the same step, however often the job was restarted."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long().to(DEVICE)


def note(step: int, loss: float) -> None:
    entry = {"what": "step", "step": step, "loss": loss, "pid": os.getpid(), "at": time.monotonic()}
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps(entry) + "\n")


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    text = batches()
    plain = LanguageModel().to(DEVICE, TYPE)
    print(f"{sum(each.numel() for each in plain.parameters()) / 1e6:.0f} million parameters", flush=True)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-4)
    path = FOLDER / "checkpoint.pt"
    step = 0
    if path.exists():
        state = torch.load(path, map_location=DEVICE, weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(plain)
    while not (FOLDER / "end").exists():
        data = batch(text, step)
        loss = functional.cross_entropy(model(data[:, :-1]).float().flatten(0, 1), data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(step, loss.item())
        step += 1
        if step % CHECKPOINT_EVERY_STEPS == 0:
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
    dist.destroy_process_group()


main()
