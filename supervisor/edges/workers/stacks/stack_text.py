"""At which place does a process's main thread stand? Reads what py-spy and faulthandler print, into one form.

One line a frame, the innermost last: `all_reduce (distributed_c10d.py:12)`. Ranks are the same when file, function and
line of all frames are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from supervisor.core.facts import StackGroup

FRAMES_MAX = 256
TEXT_CHARACTERS_MAX = 4 * 1024 * 1024

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')


class Frame(msgspec.Struct, frozen=True):
    file: str
    name: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """What is the same whoever looked: py-spy says `Loader.load`, faulthandler `load`."""
        return self.file, self.name.rpartition(".")[2], self.line

    def __str__(self) -> str:
        return f"{self.name} ({os.path.basename(self.file)}:{self.line})"


Stack = tuple[Frame, ...]  # the innermost last


def from_py_spy(output: bytes, pid: int) -> Stack | None:
    """The main thread of `py-spy dump --json`; None if the output is not that, or it has no Python frame."""
    try:
        threads: list[dict[str, Any]] = json.loads(output)
        # The main thread's id is the process's; where py-spy doesn't know ids, Python lists the oldest last.
        main = next((thread for thread in threads if thread["os_thread_id"] == pid), threads[-1])
        frames = [
            Frame(str(each["filename"]), str(each["name"]), int(each["line"])) for each in main["frames"][:FRAMES_MAX]
        ]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return tuple(reversed(frames)) or None


def from_faulthandler(text: str) -> Stack | None:
    """The first thread of a faulthandler dump; None if there is none, or it has no Python frame."""
    frames: list[Frame] = []
    inside = False
    for line in text[:TEXT_CHARACTERS_MAX].splitlines():
        if _THREAD.match(line):
            if inside:
                break
            inside = True
        elif inside and (found := _FRAME.match(line)) and len(frames) < FRAMES_MAX:
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames.append(Frame(found["file"], found["name"], number))
    return tuple(reversed(frames)) or None


def main_thread_first(text: str) -> str:
    """faulthandler lists a process's threads newest first, so the main thread last; puts it first."""
    blocks: list[list[str]] = []
    for line in text[:TEXT_CHARACTERS_MAX].splitlines():
        if _THREAD.match(line):
            blocks.append([])
        if blocks:
            blocks[-1].append(line)
    return "\n".join(line for block in [*blocks[-1:], *blocks[:-1]] for line in block)


def grouped(stacks: Mapping[int, Stack]) -> tuple[StackGroup, ...]:
    """Ranks with equal stacks together, the smallest groups (the odd ones) first."""
    together: dict[tuple[tuple[str, str, int], ...], list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        together.setdefault(tuple(frame.place for frame in stack), []).append(rank)
    groups = [StackGroup(tuple(ranks), "\n".join(map(str, stacks[ranks[0]]))) for ranks in together.values()]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))
