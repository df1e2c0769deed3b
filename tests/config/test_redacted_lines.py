"""Do printed lines lose their secrets and keep the rest?"""

from __future__ import annotations

import pytest

from supervisor.config.redacted_lines import redacted_line


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loss 2.31, tokens: 8192, num_tokens=12", "loss 2.31, tokens: 8192, num_tokens=12"),
        ('  File "train.py", line 9, in <module>', '  File "train.py", line 9, in <module>'),
        ("WANDB_API_KEY=abc123 ok", "WANDB_API_KEY=*** ok"),
        ("token: s3cr3t", "token: ***"),
        ("{'api_key': 'abc', 'n': 1}", "{'api_key': '***', 'n': 1}"),
        ('"password": "hunter2"', '"password": "***"'),
        ("run --hf-token hf_abcdefghijkl x", "run --hf-token *** x"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("at redis://ann:hunter2@host:6379/0", "at redis://ann:***@host:6379/0"),
        ("key is sk-abcdefghijkl.", "key is ***."),
        ("pushing with ghp_0123456789abcdef", "pushing with ***"),
        ("keyboard: qwerty, monkey=1", "keyboard: qwerty, monkey=1"),
    ],
)
def test_a_line(line: str, shown: str):
    assert redacted_line(line) == shown
