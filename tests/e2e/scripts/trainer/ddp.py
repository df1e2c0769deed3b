# pyright: basic, reportPrivateImportUsage=false, reportMissingImports=false, reportMissingModuleSource=false
"""A training script as people write it for torchrun: run as `-m trainer.ddp`; knows nothing of Holdfast."""

import argparse
import json
import logging
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

from .samples import Numbers


def say(*words: object) -> None:
    """Writes a line at once: print() would write each word separately, and two ranks share the output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def child(index: int, file: str) -> None:
    with open(file, "w") as out:
        out.write(f"child {index} in {torch.get_num_threads()} thread")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("--nproc-per-node", required=True)
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("-m", dest="momentum", type=float, default=0.0)
    parser.add_argument("rest", nargs="*")
    return parser.parse_args()


def train(momentum: float, rank: int) -> None:
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for context, workers in (("fork", 2), ("spawn", 1)):
        samples = Numbers(32)
        sampler = DistributedSampler(samples, shuffle=True, seed=5)
        loader = DataLoader(
            samples, batch_size=4, sampler=sampler, num_workers=workers, multiprocessing_context=context
        )
        sampler.set_epoch(len(context))
        losses = []
        for batch in tqdm(loader, disable=rank != 0, mininterval=0, bar_format=context + " {n}/{total}"):
            optimiser.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(f"{loss.item():.9f}")
        say(f"rank {rank} {context}", *losses)


@record
def main() -> None:
    options = arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with open(f"{options.log_dir}/env.{rank}.json", "w") as file:
        json.dump(dict(os.environ), file)
    logging.getLogger("trainer").info("rank %d: %s %s", rank, options.momentum, options.rest)
    say(f"rank {rank}", sys.argv[1:], options, __name__, __package__, os.path.basename(__file__))
    say(f"rank {rank} {torch.get_num_threads()} thread, path {sys.path[0] == os.getcwd()}")
    train(options.momentum, rank)
    if rank == 0:
        say("stdin:", sys.stdin.read())
        file = f"{options.log_dir}/child"
        torch.multiprocessing.spawn(child, args=(file,), nprocs=1)
        with open(file) as told:
            say(told.read())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
