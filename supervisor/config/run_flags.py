"""What did the user type: which flags with which values, and which command?

argparse's rules as torchrun has them, without argparse (its import and a parser of 90 flags cost more than the rest of
the start): flags up to the first other word; that word is the script and everything after it is the script's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from supervisor.config.launch_settings import settings_by_flag
from supervisor.config.setting import Setting
from supervisor.config.value_origin import Given, clip, nearest, read
from supervisor.config.values import FALSE_WORDS, TRUE_WORDS
from supervisor.errors import InvalidRequestError

HELP_FLAGS = ("-h", "--help", "--help-all")
MEANT_MAX = 4  # flags named that an abbreviation may mean
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_BOOLEAN_WORDS = frozenset(TRUE_WORDS + FALSE_WORDS)
_PLAIN_WORD = re.compile(r"[A-Za-z]+")


class TypedLine(msgspec.Struct):
    """The command line, taken apart. A flag given twice counts with its last value, as in torchrun."""

    given: dict[str, Given] = msgspec.field(default_factory=dict[str, Given])
    command: tuple[str, ...] = ()
    warnings: list[str] = msgspec.field(default_factory=list[str])
    flags: Mapping[str, tuple[Setting, bool]] = msgspec.field(default_factory=settings_by_flag)
    command_name: str = "run"
    help_wanted: str = ""  # "--help" or "--help-all"


def read_command_line(argv: Sequence[str], line: TypedLine | None = None) -> TypedLine:
    """Parses `argv` (without the program and its command) into `line`. Raises InvalidRequestError."""
    line = line or TypedLine()
    words = list(argv)
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--" or not _is_flag(word):
            line.command = _command(words[position:])
            break
        if word in HELP_FLAGS:
            line.help_wanted = "--help" if word == "-h" else word
            break
        position += 1
        if word.startswith("--"):
            position += _read_long(line, word, words[position:])
        else:
            position += _read_short(line, word, words[position:])
    return line


def _is_flag(word: str) -> bool:
    """Applies argparse's rule: a dash alone, a negative number, and a word with a space in it are not flags."""
    if len(word) < 2 or word[0] != "-" or _NEGATIVE_NUMBER.fullmatch(word):
        return False
    return " " not in word.partition("=")[0]


def _command(words: list[str]) -> tuple[str, ...]:
    """Returns the script and its arguments, without one `--` before it, or else right after it, as argparse does."""
    if words[0] == "--":
        return tuple(words[1:])
    return (words[0], *words[2:]) if words[1:2] == ["--"] else tuple(words)


def _read_long(line: TypedLine, word: str, following: list[str]) -> int:
    typed, equals, attached = word.partition("=")
    flag = "--" + typed[2:].replace("_", "-")
    found = line.flags.get(flag) or _abbreviated(line, flag, typed)
    if found is None:
        raise _unknown(line, typed)
    setting, is_old = found
    if is_old:
        line.warnings.append(f"{typed} is an old name: write {setting.flag}")
    if equals:
        return _keep(line, setting, typed, attached, 0)
    return _read_value(line, setting, typed, following)


def _abbreviated(line: TypedLine, flag: str, typed: str) -> tuple[Setting, bool] | None:
    """Returns the one setting that a flag begins, as argparse does. Raises InvalidRequestError if it begins several."""
    longer = {
        found[0].name: name
        for name, found in line.flags.items()
        if name.startswith(flag) and not name.startswith("--ft-param-")
    }
    if len(longer) > 1:
        names = sorted(longer.values())
        named = f"{', '.join(names[:MEANT_MAX])}{' or others' if len(names) > MEANT_MAX else ''}"
        raise InvalidRequestError(f"cannot use {clip(typed)}: it may mean {named}; type more characters")
    return line.flags[next(iter(longer.values()))] if longer else None


def _read_short(line: TypedLine, word: str, following: list[str]) -> int:
    """Reads -m, -r3, -r 3, -r=3, and switches joined with others: -mr3."""
    for index, letter in enumerate(word[1:], start=1):
        found = line.flags.get("-" + letter)
        if found is None:
            raise _unknown(line, word if index == 1 else "-" + letter)
        setting, _ = found
        rest = word[index + 1 :]
        if setting.is_switch and not rest.startswith("="):
            _keep(line, setting, "-" + letter, "true", 0)
            continue
        if rest:
            return _keep(line, setting, "-" + letter, rest.removeprefix("="), 0)
        return _read_value(line, setting, "-" + letter, following)
    return 0


def _read_value(line: TypedLine, setting: Setting, typed: str, following: list[str]) -> int:
    """Reads the value in the next word if the flag takes one. Returns how many words were used."""
    next_word = following[0] if following else None
    if setting.is_switch:
        if _is_value_of_switch(setting, following):
            return _keep(line, setting, typed, following[0], 1)
        return _keep(line, setting, typed, "true", 0)
    if next_word is None or next_word == "--" or _is_flag(next_word):
        remedy = f"write {setting.flag} {setting.kind.metavar}"
        raise InvalidRequestError(f"cannot use {typed}: it needs a value; {remedy}")
    return _keep(line, setting, typed, next_word, 1)


def _is_value_of_switch(setting: Setting, following: list[str]) -> bool:
    """Returns whether the next word is the switch's value. After torchrun's switches it is the script, always.

    After an --ft- switch a plain word before others is taken for a value even if it is none: a misspelt `ture` is
    then an error and not a script.
    """
    if not setting.flag.startswith("--ft-") or not following:
        return False
    word = following[0].lower()
    return word in _BOOLEAN_WORDS or (len(following) > 1 and _PLAIN_WORD.fullmatch(word) is not None)


def _keep(line: TypedLine, setting: Setting, typed: str, text: str, used: int) -> int:
    shown = typed if setting.is_switch and text == "true" else f"{typed} {clip(text)}"
    line.given[setting.name] = read(setting, text, shown=shown, removal=f"remove {typed}", from_flag=True)
    return used


def _unknown(line: TypedLine, typed: str) -> InvalidRequestError:
    known = line.flags
    flag = "--" + typed.lstrip("-").replace("_", "-")
    suggestion = nearest(flag, known)
    remedy = f"did you mean {suggestion}" if suggestion else f"see holdfast {line.command_name} --help"
    return InvalidRequestError(f"cannot use {clip(typed)}: there is no such flag; {remedy}")
