"""Are secrets hidden and ordinary settings shown?"""

from __future__ import annotations

import pytest

from supervisor.config.redaction import redacted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train.py --lr 0.1", "train.py --lr 0.1"),
        ("train.py --api-key=abc", "train.py --api-key=***"),
        ("train.py --api_key abc --lr 1", "train.py --api_key *** --lr 1"),
        ("env WANDB_API_KEY=abc train.py", "env WANDB_API_KEY=*** train.py"),
        ("train.py --password", "train.py --password"),
        ("train.py --use-token --lr 1", "train.py --use-token --lr 1"),
        ("train.py --num-tokens 8 --tokenizer gpt2", "train.py --num-tokens 8 --tokenizer gpt2"),
        ("train.py data/key.json token", "train.py data/key.json token"),
        ("train.py +wandb.api_key=abc ++hub.token=abc ~key", "train.py +wandb.api_key=*** ++hub.token=*** ~key"),
        ("train.py --hfToken abc --accessKeyId=abc", "train.py --hfToken *** --accessKeyId=***"),
        ("train.py --store redis://me:abc@host:6379/0", "train.py --store redis://me:***@host:6379/0"),
        (
            "train.py --store=redis://:abc@host url=https://me@host:1/a:b@c",
            "train.py --store=redis://:***@host url=https://me@host:1/a:b@c",
        ),
    ],
)
def test_words(given: str, shown: str) -> None:
    assert " ".join(redacted(given.split())) == shown
