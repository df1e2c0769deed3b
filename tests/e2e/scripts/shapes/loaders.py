# pyright: basic, reportPrivateImportUsage=false
"""A data loader whose processes stay for all epochs, and a sampler that deals the data out to the ranks."""

import torch
import torch.distributed as dist
from steps import end, load, save, steps
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Gifts(Dataset):
    def __init__(self) -> None:
        self.epoch = torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.epoch + 1) * (index % 2 + 1) / 2  # two of them in each rank


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gifts = Gifts()
    sampler = DistributedSampler(gifts, shuffle=False)
    loader = DataLoader(gifts, sampler=sampler, num_workers=2, persistent_workers=True)
    total = load(rank)
    for epoch in steps(rank):
        sampler.set_epoch(epoch)
        gifts.epoch.fill_(epoch)
        gift = torch.stack(list(loader)).sum()
        dist.all_reduce(gift)
        total += gift.item()
        save(rank, epoch, total)
    end(rank, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
