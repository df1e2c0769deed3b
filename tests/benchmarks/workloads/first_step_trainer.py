"""A transformers Trainer that goes on from its checkpoint: each rank reports its first step; a rank is killed."""

# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# ruff: noqa: ANN001, ANN002, ANN003, ANN204, E402 - people write without types; the first line is recorded before any import

from recording import CYCLE, RANK, STARTED_NS, await_go, note_fault, record

record("first_line", STARTED_NS)

import os  # isort: skip
import signal

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

record("imported")
FOLDER = "checkpoints"


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 12) % 50
        return {"input_ids": tokens, "labels": tokens}


class Reports(TrainerCallback):
    reported = False

    def on_train_begin(self, *_, **__):
        record("set_up")

    def on_step_begin(self, _args, state, _control, **_):
        if CYCLE == 0 and (RANK, state.global_step) == (1, 3):
            await_go()
            note_fault()
            record("fault")
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_end(self, _args, state, _control, **_):
        if not self.reported and (CYCLE or state.global_step == 3):
            self.reported = True
            record("step")


def main():
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=16, **shape))
    arguments = TrainingArguments(
        output_dir=FOLDER, use_cpu=True, max_steps=6, per_device_train_batch_size=4, save_steps=2,
        report_to=[], disable_tqdm=True, seed=1,
    )  # fmt: skip
    record("group")
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Reports()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER) if os.path.isdir(FOLDER) else None)


if __name__ == "__main__":
    main()
