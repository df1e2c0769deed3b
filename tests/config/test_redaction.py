"""Are secrets hidden and ordinary settings, messages and tracebacks shown?"""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.redaction import HIDDEN, redacted, redacted_text, secret_values
from tests.config.planted_secrets import FORMS, ORDINARY_LINES, ORDINARY_WORDS, SECRETS, command_of, text_of


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
        ("train.py --auth me:abc --pwd abc --no-auth x", "train.py --auth *** --pwd *** --no-auth x"),
        ("t.py --eos-token </s> --sort-key loss --max-token 1", "t.py --eos-token </s> --sort-key loss --max-token 1"),
        ("train.py --llm-api-key-file /run/key", "train.py --llm-api-key-file /run/key"),
        ("train.py --token-type 3 --key 7 --auth false", "train.py --token-type 3 --key 7 --auth false"),
    ],
)  # fmt: skip
def test_words(given: str, shown: str) -> None:
    assert " ".join(redacted(given.split())) == shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("Authorization: abc", "Authorization: ***"),
        ('{"api_key": "a b,c", "n": 1}', '{"api_key": "***", "n": 1}'),
        ('{\\"api_key\\": \\"abc\\"}', '{\\"api_key\\": \\"***\\"}'),
        ("--config={'password': 'abc'}", "--config={'password': '***'}"),
        ("https://h/p?access_token=abc&n=1", "https://h/p?access_token=***&n=1"),
        ("https://a1b2c3d4e5f6@github.com/x", "https://***@github.com/x"),
        ("https://h/b?X-Amz-Signature=0f0f0f&X-Amz-Date=1", "https://h/b?X-Amz-Signature=***&X-Amz-Date=1"),
    ],
)
def test_within_a_word(word: str, shown: str) -> None:
    assert redacted(("train.py", "-H", word)) == ("train.py", "-H", shown)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loss 2.31, tokens: 8192, num_tokens=12", "loss 2.31, tokens: 8192, num_tokens=12"),
        ('  File "train.py", line 9, in <module>', '  File "train.py", line 9, in <module>'),
        ("WANDB_API_KEY=abc123 ok", "WANDB_API_KEY=*** ok"),
        ("token: s3cr3t", "token: ***"),
        ("killed by SIGKILL at sig=0f0f0f0f1a2b", "killed by SIGKILL at sig=***"),
        ("SIGTERM_TOKEN=abc SIGTERM=abc", "SIGTERM_TOKEN=*** SIGTERM=abc"),
        ("{'api_key': 'abc', 'n': 1}", "{'api_key': '***', 'n': 1}"),
        ('"password": "hunter2"', '"password": "***"'),
        ("run --hf-token hf_abcdefghijkl x", "run --hf-token *** x"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("at redis://ann:hunter2@host:6379/0", "at redis://ann:***@host:6379/0"),
        ("key is sk-abcdefghijkl.", "key is ***."),
        ("pushing with ghp_0123456789abcdef", "pushing with ***"),
        ("keyboard: qwerty, monkey=1", "keyboard: qwerty, monkey=1"),
        ("connect(password=p4,w;d, port=1)", "connect(password=***, port=1)"),
        ("password: 123456", "password: ***"),
        ("password: swordfish", "password: ***"),
        ("password=secret123", "password=***"),
    ],
)
def test_a_line(line: str, shown: str) -> None:
    assert redacted_text(line) == shown


@pytest.mark.parametrize("line", ORDINARY_LINES)
def test_ordinary_text_stays(line: str) -> None:
    assert redacted_text(line) == line


@pytest.mark.parametrize("words", ORDINARY_WORDS)
def test_ordinary_commands_stay(words: str) -> None:
    assert redacted(words.split()) == tuple(words.split())


@pytest.mark.parametrize(
    "name",
    [
        "key", "api-key", "access-key", "private-key", "secret-key", "encryption-key", "signing-key", "ssh-key",
        "account-key", "license-key", "auth-key", "join-key", "hash-key", "node-key", "camera-key", "action-token",
        "observation-token", "observation-api-key", "action-secret",
    ],
)  # fmt: skip
def test_a_name_that_is_not_known_as_a_columns_hides_its_value(name: str) -> None:
    assert redacted(("train.py", f"--{name}", "joint_angles")) == ("train.py", f"--{name}", HIDDEN)
    assert redacted((f"--{name}=joint_angles",)) == (f"--{name}={HIDDEN}",)


@given(secret=SECRETS, command=st.data())
def test_no_planted_secret_stays_in_a_command(secret: str, command: st.DataObject) -> None:
    words = command.draw(command_of(secret))
    assert secret not in json.dumps(redacted(words))


@given(secret=SECRETS, text=st.data())
def test_no_planted_secret_stays_in_a_text(secret: str, text: st.DataObject) -> None:
    assert secret not in redacted_text(text.draw(text_of(secret)))


@given(SECRETS, SECRETS, st.sampled_from(('"', "'", "\\", "\u00e4", "\n")), st.integers(1, 4))
def test_what_a_secret_escapes_does_not_end_it(begin: str, end: str, between: str, depth: int) -> None:
    text = f"{begin}{between}{end}"
    for escaped in (json.dumps, repr):
        told: object = {"n": 1, "password": text, "m": 2}
        for _ in range(depth):
            told = escaped(told)
        shown = redacted_text(f"told: {told}")
        assert begin not in shown
        assert end not in shown


@given(secret=SECRETS, before=st.text(max_size=30), after=st.text(max_size=30))
def test_a_known_secret_stays_nowhere(secret: str, before: str, after: str) -> None:
    values = secret_values(("t.py", "--hf-token", secret), {"HOME": "/root"})
    assert values == secret_values(("t.py",), {"HF_TOKEN": secret}) == (secret,)
    assert secret not in redacted_text(f"{before}{secret}{after}", values)


@given(secret=SECRETS, cut=st.integers(8, 40), mark=st.sampled_from(("", "…", "… (300 more characters)")))
def test_a_known_secret_that_was_cut_is_hidden_too(secret: str, cut: int, mark: str) -> None:
    part = secret[:cut]
    assert part not in redacted_text(f"refused: {part}{mark}", (secret,))
    assert secret[-cut:] not in redacted_text(f"{secret[-cut:]} was refused", (secret,))


@given(secret=SECRETS, form=st.sampled_from(FORMS), data=st.data())
def test_a_cut_makes_no_well_known_form_unknown(secret: str, form: str, data: st.DataObject) -> None:
    """What is left of it is hidden as soon as more than a few of its characters are left."""
    text = f"cannot log in with {form.format(secret, secret)}"
    begin = text.index(secret)
    cut = data.draw(st.integers(begin + 8, begin + len(secret)))
    left = text[begin:cut]
    if any(each.isdigit() for each in left):
        for shown in (redacted_text(text[:cut]), redacted_text(f"{text[:cut]}…")):
            assert left not in shown


SECRET = "s3cretOfThisJob"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_PAT", SECRET), ("PAT", SECRET), ("AUTH", SECRET), ("LLM_KEY", SECRET), ("TOKEN", SECRET),
        ("SLACK_WEBHOOK", f"https://hooks.example/x/{SECRET}"), ("CONNECTION_STRING", f"a=b;{SECRET}"),
        ("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=me;AccountKey={SECRET};x=y"), ("DB_DSN", SECRET),
        ("DATABASE_URL", f"postgresql://me:{SECRET}@db/x"), ("REDIS", f"redis://:{SECRET}@host:6379/0"),
        ("BLOB", f"https://me.blob.example/c?sv=1&sig={SECRET}"), ("SETTINGS", f'{{"api_key": "{SECRET}"}}'),
    ],
)  # fmt: skip
def test_secrets_of_a_job_are_known_by_name_and_by_place(name: str, value: str) -> None:
    for values in (
        secret_values((), {name: value}), secret_values(("t.py", f"{name}={value}"), {}),
        secret_values(("t.py", f"--{name.lower()}", value), {}) if name != "PAT" else secret_values((), {name: value}),
    ):  # fmt: skip
        shown = redacted_text(f"KeyError: {value}", values)
        assert SECRET not in shown
    password = redacted_text(f"refused {SECRET}", secret_values((), {name: value}))
    assert password == "refused ***" or "://hooks" in value or value.startswith("a=b")


def test_what_only_may_be_a_secret_is_known_if_it_looks_like_one() -> None:
    ordinary = {
        "KEY": "eval_loss", "AUTH": "none", "PASS": "second pass of three", "SORT_KEY": "column01x",
        "FILE_PAT": "*.tar1",
        "URL": "https://host:8080/a", "WEBHOOK": "enabled", "TOKEN": "/run/token1",
    }  # fmt: skip
    assert secret_values((), ordinary) == ()


def test_paths_and_numbers_of_the_environment_are_no_secrets() -> None:
    key = "/abcdefghijklmnopqrstuvwxyzABCDEF0123456"
    environment = {
        "PWD": "/srv/somebody", "SSH_KEY": "/srv/somebody/id_ed25519", "PASSWORD": "12345678901", "TOKEN": "abc",
        "NUM_TOKENS": "8192000000", "AWS_SECRET_ACCESS_KEY": key,
    }  # fmt: skip
    assert secret_values((), environment) == (key, "12345678901")


@given(st.text(alphabet=string.printable, max_size=300))
def test_any_text_is_taken_and_hidden_only_once(text: str) -> None:
    shown = redacted_text(text)
    assert redacted_text(shown) == shown or HIDDEN in shown


def test_a_long_text_takes_little_time() -> None:
    for nasty in ("token" * 40_000, "a." * 80_000, "=:" * 80_000, '"\\' * 80_000, "key: " * 40_000, "://:" * 40_000):
        redacted_text(nasty)
