# pyright: basic, reportPrivateImportUsage=false
"""Pipeline parallel: each rank has one stage, and a batch goes through them in parts."""

import torch
import torch.distributed as dist
from steps import end, load, save, steps
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Stage(torch.nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor([bias]))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + self.bias


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Stage(load(rank))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda found, wanted: -(found * wanted).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    for step in steps(rank):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.zeros(4, 1))
        else:
            schedule.step(target=torch.full((4, 1), step + 1.0))
        optimizer.step()
        save(rank, step, model.bias.item())
    end(rank, model.bias.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
