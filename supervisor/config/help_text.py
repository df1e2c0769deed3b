"""What does `holdfast run --help` say?"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.setting import Group, Setting, Status

WIDTH = 120
_COLUMN = 46

USAGE = """\
usage: holdfast run [options] script.py [args...]
       holdfast run [options] -m module [args...]
       holdfast run [options] --no-python command [args...]

Runs a training job on this node and keeps it running. Flags may be written with - or _; each has a default from the
variable PET_<NAME>, such as PET_MAX_RESTARTS. Everything after the script is the script's own.
"""


def run_help() -> str:
    """The whole help: one line a flag, in groups."""
    parts = [USAGE]
    for group in Group:
        members = [setting for setting in RUN_SETTINGS if setting.group is group]
        works = [setting for setting in members if setting.status is Status.WORKS]
        if works:
            parts.append(f"\n{group}:\n" + "".join(_line(setting) for setting in works))
        elif members:
            parts.append(f"\n{group}:\n" + _names(members))
    parts.append("\nSeconds are plain numbers. docs/configuration.md has every flag, key, variable and unit.\n")
    return "".join(parts)


DAEMON_USAGE = """\
usage: holdfast daemon [options]

Supervises the training jobs of this node, in the foreground.

Options, each also a key of the file:
"""


def daemon_help(settings: Sequence[Setting]) -> str:
    later = [setting for setting in settings if setting.status is Status.LATER]
    lines = [_line(setting) for setting in settings if setting.status is not Status.LATER]
    return DAEMON_USAGE + "".join(lines) + (f"\n{Group.LATER}:\n{_names(later)}" if later else "")


def _line(setting: Setting) -> str:
    short = f"{setting.short}, " if setting.short else ""
    flag = short + setting.flag + ("" if setting.is_switch else f" {setting.kind.metavar}")
    default, unit = setting.default_text(), setting.kind.unit
    is_off = setting.is_switch and setting.default_value() is False
    note = "" if not default or is_off else f" [{default}{' s' if unit == 's' and default[:1].isdigit() else ''}]"
    indent = "" if len(flag) < _COLUMN - 3 else "\n" + " " * _COLUMN
    return (
        f"  {flag:<{_COLUMN - 2}}{setting.meaning}{note}\n"
        if not indent
        else f"  {flag}{indent}{setting.meaning}{note}\n"
    )


def _names(members: list[Setting]) -> str:
    lines = ["  "]
    for setting in members:
        if len(lines[-1]) + len(setting.flag) + 1 > WIDTH:
            lines.append("  ")
        lines[-1] += setting.flag + " "
    return "".join(line.rstrip() + "\n" for line in lines)
