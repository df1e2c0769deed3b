"""Where was a value given, and how is a mistake in it reported?"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.config.setting import Setting
from supervisor.config.values import ValueProblem
from supervisor.errors import ConfigurationError, HoldfastError, InvalidRequestError

SHOWN_MAX = 80  # characters of a value in a message


class Given(msgspec.Struct, frozen=True):
    """One value, as the user wrote it in one place."""

    setting: Setting
    value: object
    shown: str  # "--max-restarts 3", "PET_MAX_RESTARTS=3", "job.yaml, line 3 (max_restarts: 3)"
    removal: str  # "remove --max-restarts"
    from_flag: bool = False

    def problem(self, why: str, remedy: str) -> HoldfastError:
        return problem(f"use {self.shown}", why, remedy, from_flag=self.from_flag)


def problem(what: str, why: str, remedy: str, *, from_flag: bool) -> HoldfastError:
    """Returns the error for a mistake on the command line (exit code 2) or in a file or variable (78)."""
    kind = InvalidRequestError if from_flag else ConfigurationError
    return kind(f"cannot {what}: {why}; {remedy}")


def read(setting: Setting, text: str, *, shown: str, removal: str, from_flag: bool = False) -> Given:
    """Reads the value in `text`. Raises InvalidRequestError or ConfigurationError."""
    try:
        value = setting.kind.parse(text)
    except ValueProblem as trouble:
        raise problem(f"use {shown}", trouble.why, trouble.remedy, from_flag=from_flag) from None
    return Given(setting, value, shown, removal, from_flag)


def from_variable(setting: Setting, variable: str, text: str) -> Given:
    return read(setting, text, shown=f"{variable}={clip(text)}", removal=f"unset {variable}")


def clip(text: str) -> str:
    """Returns `text` on one line and short enough for a message; '' if it is empty."""
    line = text if text.isprintable() else ascii(text)[1:-1]
    line = line if len(line) <= SHOWN_MAX else line[: SHOWN_MAX - 1] + "…"
    return line if line and not line.isspace() else f"'{line}'"


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the known word that was probably meant, or ""."""
    import difflib  # only for mistakes

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return found[0] if found else ""
