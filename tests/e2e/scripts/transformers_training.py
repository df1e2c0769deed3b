# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# ruff: noqa: ANN001, ANN003, ANN204 - people write such scripts without types
"""A transformers Trainer with its own checkpoints; rank 1 dies at KILL_AT_STEP, then stops at STOP_AT_STEP.

With --latest, it names its checkpoints as docs/checkpoints.md advises.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Faults(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if args.process_index != 1:
            return
        cycle, step = os.environ["TORCHELASTIC_RESTART_COUNT"], str(state.global_step)
        if (cycle, step) == ("0", os.environ.get("KILL_AT_STEP")):
            os.kill(os.getpid(), signal.SIGKILL)
        if (cycle, step) == ("1", os.environ.get("STOP_AT_STEP")):
            os.kill(os.getpid(), signal.SIGSTOP)


class NameLatest(TrainerCallback):
    def __init__(self, latest: Path):
        self.latest = latest

    def on_save(self, args, state, control, **_):
        from worker_client import commit

        dist.barrier()
        if state.is_world_process_zero:
            with commit(self.latest) as temporary:
                temporary.write_text(f"{args.output_dir}/checkpoint-{state.global_step}")


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        tokens = torch.arange(index, index + 12) % 50
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    folder, latest = sys.argv[1], Path(sys.argv[1], "latest")
    if "--latest" in sys.argv:
        from worker_client import fencing_token

        folder = f"{folder}/{fencing_token()}"
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16,
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=12, per_device_train_batch_size=4, save_steps=4, logging_steps=1,
        learning_rate=1e-2, report_to=[], disable_tqdm=True, seed=1, dataloader_num_workers=1,
    )  # fmt: skip
    callbacks: list[TrainerCallback] = [Faults()]
    if "--monitored" in sys.argv:
        from worker_client.transformers import FaultToleranceCallback

        callbacks.append(FaultToleranceCallback())
    if "--latest" in sys.argv:
        latest.parent.mkdir(exist_ok=True)
        callbacks.append(NameLatest(latest))
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=callbacks)
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    if latest.exists():
        last = latest.read_text()
    trainer.train(resume_from_checkpoint=last)
    losses = {entry["step"]: f"{entry['loss']:.4f}" for entry in trainer.state.log_history if "loss" in entry}
    total = sum(parameter.abs().sum().item() for parameter in model.parameters())
    began = int(last.rpartition("-")[2]) if last else 0
    sys.stdout.write(
        f"rank {arguments.process_index} of {arguments.world_size} {arguments.parallel_mode} from {began}\n"
    )
    sys.stdout.write(f"rank {arguments.process_index} losses {losses} parameters {total:.5f}\n")


if __name__ == "__main__":
    main()
