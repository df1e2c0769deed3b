"""Which folder at home does a user take where nothing else on the node can be written?

Several nodes may share a home, and folders of an earlier boot mean nothing: the name says node and boot.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from supervisor.edges.machine.processes import process_table

BOOT_DIGITS = 8


def home_dir(environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns the last resort where nothing else can be written: a folder at home, for this node and this boot.

    It may not exist. None without a home that is the user's own.
    """
    home = (os.environ if environment is None else environment).get("HOME", "")
    if not os.path.isabs(home) or not _is_own(os.path.realpath(home)):
        return None
    return Path(home) / f"{_home_name_of_node()}{process_table.boot_id()[:BOOT_DIGITS]}"


def earlier_home_dirs(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Returns the folders at home of earlier boots of this node. Other nodes may have theirs in the same home."""
    current = home_dir(environment)
    if current is None:
        return []
    name = re.compile(rf"{re.escape(_home_name_of_node())}[0-9a-f]{{{BOOT_DIGITS}}}")
    try:
        names = os.listdir(current.parent)
    except OSError:
        return []
    found = [current.with_name(each) for each in names if name.fullmatch(each) and each != current.name]
    return [each for each in found if _is_own(each)]


def _home_name_of_node() -> str:
    try:
        with open("/etc/machine-id") as file:
            machine = file.read(64).strip()
    except (OSError, ValueError):
        machine = ""
    return f".holdfast-{zlib.crc32(f'{os.uname().nodename} {machine}'.encode()):08x}-"


def _is_own(path: Path | str) -> bool:
    """Returns whether it is a folder of this user, and no link to one."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
