"""How is a value that a user typed read, and what is wrong with it?

A kind reads the text of one value, from a flag, a variable or a scalar of a file alike, so all three obey one rule.
"""

from __future__ import annotations

import enum
import math
import re
import signal
from collections.abc import Callable
from typing import cast

import msgspec
from holdfast_wire.page_layout import SECTION_NAME_CHARACTERS_MAX, SECTION_SLOTS_MAX

SECONDS_MAX = 604_800.0  # a week: longer is a slip of the unit (milliseconds), not a limit
JOB_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")
TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")
NONE_WORDS = ("none", "null", "")

_WITH_UNIT = re.compile(r"([0-9.]+)\s*(ms|s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?)", re.IGNORECASE)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NOT_ENDING = frozenset(
    {
        signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
        signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH,
    }
)  # fmt: skip


class ValueProblem(Exception):
    """Raised by a kind: says why the text is not one of its values, and what to write instead."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


class Shape(enum.Enum):
    """The shape of a value in a file."""

    NUMBER = "a number"
    BOOLEAN = "true or false"
    TEXT = "text"
    WORD = "text or a number"
    MAP = "a mapping of names to seconds"


class Kind(msgspec.Struct, frozen=True):
    """One kind of value: `parse` raises ValueProblem, `show` gives the text that `parse` reads back."""

    metavar: str
    unit: str
    shape: Shape
    parse: Callable[[str], object]
    show: Callable[[object], str] = str
    none_is_value: bool = False  # null in a file is "no limit", not "not set"


def show_number(value: object) -> str:
    """Shows 2700.0 as 2700, 0.25 as 0.25, None as none."""
    if value is None:
        return "none"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def show_boolean(value: object) -> str:
    return "true" if value else "false"


def parse_boolean(text: str) -> bool:
    """Reads a boolean; all booleans are read here."""
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueProblem("it is neither true nor false", "write true or false")


def plain(text: str) -> str:
    """Returns the text of a number. Raises ValueError for what only Python takes: `1_0`, digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _parse_float(text: str, what: str, example: str) -> float:
    try:
        value = float(plain(text))
    except ValueError:
        raise ValueProblem(f"{what} must be a plain number", f"write a number such as {example}") from None
    if not math.isfinite(value):
        raise ValueProblem(f"{what} must be a finite number", f"write a number such as {example}")
    return value


def _within(value: float, low: float, high: float, unit: str = "") -> None:
    suffix = f" {unit}" if unit else ""
    if value < low:
        raise ValueProblem(
            f"it is below the least value {show_number(low)}{suffix}", f"write {show_number(low)} or more"
        )
    if value > high:
        raise ValueProblem(
            f"it is above the greatest value {show_number(high)}{suffix}", f"write {show_number(high)} or less"
        )


def parse_seconds(text: str, *, zero: bool, none: bool, most: float = SECONDS_MAX) -> float | None:
    """Reads seconds as a plain number. With `none`, the words none and null and an empty text mean no limit."""
    if none and text.strip().lower() in NONE_WORDS:
        return None
    with_unit = _WITH_UNIT.fullmatch(text.strip())
    if with_unit:
        factor = _UNIT_S["ms" if with_unit[2].lower() == "ms" else with_unit[2][0].lower()]
        try:
            suggestion = f"write {show_number(float(with_unit[1]) * factor)}"
        except ValueError:
            suggestion = "write a number such as 30"
        raise ValueProblem("seconds are plain numbers without a unit", suggestion)
    value = _parse_float(text, "seconds", "30" + (", or none for no limit" if none else ""))
    if value == 0.0 and not zero:
        raise ValueProblem(
            "a limit of 0 seconds could never be met",
            "write none for no limit" if none else "write more than 0 seconds",
        )
    if value > SECONDS_MAX:
        remedy = "write seconds, not milliseconds" + (", or none for no limit" if none else "")
        raise ValueProblem(f"it is above the greatest value {show_number(SECONDS_MAX)} s (a week)", remedy)
    _within(value, 0.0, most, "s")
    return value


def seconds(*, zero: bool = False, none: bool = False, most: float = SECONDS_MAX) -> Kind:
    def parse(text: str) -> object:
        return parse_seconds(text, zero=zero, none=none, most=most)

    return Kind("SECONDS|none" if none else "SECONDS", "s", Shape.NUMBER, parse, show_number, none_is_value=none)


def number(low: float, high: float, unit: str = "") -> Kind:
    def parse(text: str) -> object:
        value = _parse_float(text, "the value", show_number(low))
        _within(value, low, high, unit)
        return value

    return Kind("NUMBER", unit, Shape.NUMBER, parse, show_number)


def integer(low: int, high: int, unit: str = "", metavar: str = "N", *, none: bool = False) -> Kind:
    def parse(text: str) -> object:
        if none and text.strip().lower() in NONE_WORDS:
            return None
        try:
            value = int(plain(text))
        except ValueError:
            raise ValueProblem("it is not a whole number", f"write a whole number from {low} to {high}") from None
        _within(value, low, high, unit)
        return value

    show = show_number if none else str
    return Kind(f"{metavar}|none" if none else metavar, unit, Shape.NUMBER, parse, show, none_is_value=none)


def choice(*words: str) -> Kind:
    def parse(text: str) -> object:
        if text.lower() in words:
            return text.lower()
        raise ValueProblem(f"it is not one of {', '.join(words)}", f"write {' or '.join(words)}")

    return Kind("|".join(words), "", Shape.TEXT, parse)


def text(metavar: str = "TEXT", *, shape: Shape = Shape.TEXT, empty: bool = True) -> Kind:
    def parse(value: str) -> object:
        if "\0" in value:
            raise ValueProblem("it holds a NUL byte", "write it without")
        if not value and not empty:
            raise ValueProblem("it is empty", f"write a {metavar.lower()}")
        return value

    return Kind(metavar, "", shape, parse)


def parse_job_id(value: str) -> str:
    if JOB_ID.fullmatch(value):
        return value
    raise ValueProblem(
        "a job id has 1 to 64 letters, digits, '.', '_' or '-' and no leading '.'", "write one such as train-17"
    )


def job_id_from(text: str) -> str:
    """Returns `text` if it is a job id, else a job id with its allowed letters and a digest, the same on each node."""
    if JOB_ID.fullmatch(text):
        return text
    import hashlib  # Late: few ids need it.

    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:48]
    return f"{readable or 'job'}-{digest}"


def parse_signal(value: str) -> int:
    """Reads a signal by name in any case, with or without SIG, or by number."""
    name = value.strip().upper()
    try:
        return int(signal.Signals(int(plain(name))))
    except ValueError:
        pass
    found = signal.Signals.__members__.get(name) or signal.Signals.__members__.get("SIG" + name)
    if found is None:
        raise ValueProblem("there is no such signal", "write a name such as SIGKILL, or its number")
    return int(found)


def parse_ending_signal(value: str) -> int:
    found = parse_signal(value)
    if found in _NOT_ENDING:
        raise ValueProblem(f"{show_signal(found)} does not end a process", "write SIGKILL, SIGTERM or SIGABRT")
    return found


def show_signal(value: object) -> str:
    number = cast("int", value)
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def parse_signals(value: str) -> tuple[str, ...]:
    """Reads names of signals that a process can handle, separated by commas."""
    names: list[str] = []
    for part in value.split(","):
        found = parse_signal(part)
        name = signal.Signals(found).name
        if found in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise ValueProblem(f"{name} cannot be handled and forwarded", f"leave {name} out")
        if name not in names:
            names.append(name)
    return tuple(names)


def show_list(value: object) -> str:
    return ",".join(map(str, cast("tuple[object, ...]", value)))


SectionLimits = tuple[tuple[str, float | None], ...]


def parse_sections(value: str) -> SectionLimits:
    """Reads `setup:600,step:60,checkpointing:null`; an empty text means no section."""
    limits: dict[str, float | None] = {}
    for part in value.split(",") if value.strip() else ():
        name, colon, limit = part.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise ValueProblem(f"'{part}' is not NAME:SECONDS", "write a map such as setup:600,step:60,save:null")
        add_section(limits, name, parse_section_limit(name, limit))
    return tuple(limits.items())


def parse_section_limit(name: str, limit: str) -> float | None:
    try:
        return parse_seconds(limit.strip(), zero=False, none=True)
    except ValueProblem as problem:
        raise ValueProblem(f"section '{name}': {problem.why}", problem.remedy) from None


def check_sections(limits: SectionLimits) -> None:
    """Raises ValueProblem for what neither a flag nor a file could say."""
    checked: dict[str, float | None] = {}
    for name, limit in limits:
        add_section(checked, name, parse_section_limit(name, show_number(limit)))


def add_section(limits: dict[str, float | None], name: str, limit: float | None) -> None:
    if not name:
        raise ValueProblem("a section has no name", "write one such as step")
    if name in limits:
        raise ValueProblem(f"section '{name}' is named twice", f"keep one limit of '{name}'")
    if len(name) > SECTION_NAME_CHARACTERS_MAX:
        raise ValueProblem(
            f"the name of section '{name[:40]}…' has {len(name)} characters",
            f"write one of {SECTION_NAME_CHARACTERS_MAX} or fewer",
        )
    if len(limits) == SECTION_SLOTS_MAX:
        raise ValueProblem(f"there are more than {SECTION_SLOTS_MAX} sections", f"keep {SECTION_SLOTS_MAX} or fewer")
    limits[name] = limit


def show_sections(value: object) -> str:
    pairs = cast("SectionLimits", value)
    return ",".join(f"{name}:{show_number(limit)}" for name, limit in pairs)


BOOLEAN = Kind("true|false", "", Shape.BOOLEAN, parse_boolean, show_boolean)
PATH = text("PATH")
JOB_ID_KIND = Kind("ID", "", Shape.TEXT, parse_job_id)
SIGNAL = Kind("SIGNAL", "", Shape.WORD, parse_ending_signal, show_signal)
SIGNALS = Kind("SIGNALS", "", Shape.TEXT, parse_signals, show_list)
SECTIONS = Kind("NAME:SECONDS,...", "s", Shape.MAP, parse_sections, show_sections)
