"""Which words of a command line are secrets that no report may show?"""

from __future__ import annotations

import re
from collections.abc import Iterable

SECRET_WORDS = frozenset(
    ("token", "key", "apikey", "secret", "password", "passwd", "passphrase", "credential", "credentials")
)
HIDDEN = "***"
# Compiled at the first word that looks like a secret: most command lines have none, and this is on the way to a start.
_NAME = r"[-+~]{0,2}[\w.-]+"  # Hydra adds with + and ++
_WORD_END = r"[-_.+~]+|(?<=[a-z])(?=[A-Z])"
_PASSWORD_IN_URL = r"(?<=://)([^/?#@\s:]*):[^/?#@\s]+(?=@)"


def redacted(command: Iterable[str]) -> tuple[str, ...]:
    """`--api-key=x`, `--hf-token x` and `WANDB_API_KEY=x` lose their values; `--num-tokens 8` keeps it.

    So does the password in `redis://user:x@host`.
    """
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        names_secret = _names_secret(name)
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if equals and names_secret else _without_password(word))
        hide_next = names_secret and not equals and word.startswith("-")
    return tuple(shown)


def _names_secret(name: str) -> bool:
    lowered = name.lower()
    if not any(word in lowered for word in SECRET_WORDS) or not re.fullmatch(_NAME, name):
        return False
    return not SECRET_WORDS.isdisjoint(word.lower() for word in re.split(_WORD_END, name))


def _without_password(word: str) -> str:
    return re.sub(_PASSWORD_IN_URL, rf"\1:{HIDDEN}", word) if "://" in word else word
