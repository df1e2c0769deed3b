"""What does `holdfast run --help` say?"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.setting import Group, Setting, Status

WIDTH_MAX = 100
_JOINED = "\N{NO-BREAK SPACE}"  # within a default
_COLUMN = 26  # where meanings begin; a longer flag has a line of its own

EXAMPLES = """\
examples:
  holdfast run --nproc-per-node 4 train.py --epochs 10
  holdfast run --nproc-per-node auto --max-restarts 3 -m package.train
  holdfast run --nnodes 2:3 --rdzv-endpoint node1:29400 --rdzv-id j1 train.py
"""
USAGE = """\
usage: holdfast run [options] script.py [args...]
       holdfast run [options] -m module [args...]
       holdfast run [options] --no-python command [args...]

Runs a training job on this node and keeps it running. All arguments after the script belong to the script.
"""
SPELLING = """
Flags may be written with - or _. Each flag has a variable PET_<NAME> for its default, such as PET_MAX_RESTARTS.
Durations are plain numbers of seconds.

"""
# What most people need: together with the usage, less than a screen and a half.
FIRST = (
    "--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--rdzv-id", "--max-restarts", "--ft-cfg-path",
    "--ft-rank-heartbeat-timeout", "--ft-rank-section-timeouts", "--log-dir", "--dry-run",
)  # fmt: skip
_MORE = """
--help-all lists all flags: torchrun's, ft_launcher's (--ft-...) and Holdfast's own.
"""
_ALL = """
docs/configuration.md explains every flag, key, variable and unit.
"""


def run_help(*, everything: bool = False, width: int | None = None) -> str:
    """Returns the most used flags, or `everything`: all in groups, also those without effect. `width` None: as here."""
    width = width or _width()
    first = sorted((each for each in RUN_SETTINGS if each.flag in FIRST), key=lambda each: FIRST.index(each.flag))
    most_used = "\nMost used:\n" + "".join(_entry(setting, width) for setting in first)
    parts = [_paragraphs(USAGE, width), _paragraphs(SPELLING, width) if everything else "\n", EXAMPLES, most_used]
    if not everything:
        return "".join([*parts, _paragraphs(_MORE, width)])
    for group in Group:
        members = [setting for setting in RUN_SETTINGS if setting.group is group and setting not in first]
        if not members:
            continue
        works = [setting for setting in members if setting.status is Status.WORKS]
        entries = "".join(_entry(setting, width) for setting in works) if works else _names(members, width)
        parts.append(f"\n{group}:\n{entries}")
    parts.append(_paragraphs(_ALL, width))
    return "".join(parts)


DAEMON_USAGE = """\
usage: holdfast daemon [options]

Supervises the training jobs of this node, in the foreground.

Options, each of which is also a key of the file:
"""


def daemon_help(settings: Sequence[Setting], *, everything: bool = False, width: int | None = None) -> str:
    width = width or _width()
    later = [setting for setting in settings if setting.status is Status.LATER]
    entries = [_entry(setting, width) for setting in settings if setting.status is not Status.LATER]
    more = f"\n{Group.LATER}:\n{_names(later, width)}" if later and everything else ""
    return _paragraphs(DAEMON_USAGE, width) + "".join(entries) + more


def _width() -> int:
    return min(shutil.get_terminal_size().columns, WIDTH_MAX)


def _paragraphs(text: str, width: int) -> str:
    """Wraps lines that are too long; a line that fits stays as it is."""
    lines = [textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _entry(setting: Setting, width: int) -> str:
    short = f"{setting.short}, " if setting.short else ""
    flag = "  " + short + setting.flag + ("" if setting.is_switch else f" {setting.kind.metavar}")
    default, unit = setting.default_text(), setting.kind.unit
    is_off = setting.is_switch and setting.default_value() is False
    note = "" if not default or is_off else f" [{default}{' s' if unit == 's' and default[:1].isdigit() else ''}]"
    margin = " " * _COLUMN
    text = setting.meaning + (" " + note.strip().replace(" ", _JOINED) if len(note) < _COLUMN else note)
    wrapped = textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
    meaning = [line.replace(_JOINED, " ") for line in wrapped]
    if len(flag) + 2 <= _COLUMN:
        meaning[0] = flag.ljust(_COLUMN) + meaning[0].lstrip()
        return "\n".join(meaning) + "\n"
    return "\n".join([flag, *meaning]) + "\n"


def _names(members: Sequence[Setting], width: int) -> str:
    names = " ".join(setting.flag for setting in members)
    text = textwrap.fill(names, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{text}\n"
