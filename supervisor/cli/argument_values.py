"""Which values does a flag of a command take: durations, moments, numbers, ranks and shares?"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import datetime

from supervisor.config.values import plain
from supervisor.edges.machine.clock import Clock

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
NUMBER_MAX = 2**31 - 1  # of a rank or a cycle
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")


def duration_s(text: str) -> float:
    """Reads a duration, in seconds: numbers with units, such as 30s or 1h30m."""
    given = _seconds(text)
    if given is None:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; write numbers with units, such as 30s, 10m, 1h30m or 250d"
        )
    return given


def moment(text: str) -> int:
    """Reads a moment, as Unix nanoseconds: an age such as 10m, or an ISO 8601 time."""
    age_s = _seconds(text.strip().removeprefix("-"))
    if age_s is not None:
        return Clock().unix_ns() - int(age_s * 1e9)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1e9)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is neither an age such as 90s, 10m, 1h30m or 1d nor an ISO 8601 time such as 2026-01-31T14:05"
        ) from None


def count(text: str) -> int:
    if not _is_whole(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Reads how much to show."""
    if not _is_whole(text) or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more; leave the flag out to see everything")
    return min(int(text), NUMBER_MAX)


def rank_number(text: str) -> int:
    return _number(text, "rank")


def cycle_number(text: str) -> int:
    return _number(text, "cycle")


def _number(text: str, what: str) -> int:
    if not _is_whole(text) or len(text) > len(str(NUMBER_MAX)) or int(text) > NUMBER_MAX:
        raise ArgumentTypeError(f"{text!r} is not a {what}; {what}s are numbers from 0")
    return int(text)


def share(text: str) -> float:
    """Reads a number from 0 to 1, or a percentage."""
    try:
        value = float(plain(text.removesuffix("%"))) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a share; write a number from 0 to 1, or a percentage such as 50%")
    return value


def _seconds(text: str) -> float | None:
    """Returns None if the text is not a duration. The largest unit comes first, and each unit once."""
    parts = _PART.findall(text.strip())
    units = [UNITS_S[unit] for _, unit in parts]
    if not parts or "".join(map("".join, parts)) != text.strip() or units != sorted(set(units), reverse=True):
        return None
    return sum(float(number) * unit_s for (number, _), unit_s in zip(parts, units, strict=True))


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()
