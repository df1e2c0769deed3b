"""Where is a process's main thread? Converts the output of py-spy and faulthandler to one form.

It has one line per frame, the innermost last: `all_reduce (distributed_c10d.py:12)`. Stacks are equal if file, function
and line of all frames are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from supervisor.core.facts import StackGroup
from supervisor.core.process_facts import Frame, NamedThread

FRAMES_MAX = 256
FRAMES_JUDGED_MAX = 64  # the innermost frames, which show what a rank does
NAME_CHARACTERS_MAX = 200
PATH_CHARACTERS_MAX = 4096
LINE_MAX = 2**31 - 1
THREADS_MAX = 64  # of one process
THREAD_FRAMES_MAX = 16  # the innermost ones
TEXT_CHARACTERS_MAX = 4 * 1024 * 1024
TAIL_CHARACTERS = 8  # enough for the line that faulthandler prints in place of more threads

Stack = tuple[Frame, ...]  # the innermost last

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')


class Reading(msgspec.Struct, frozen=True):
    """The result of one look at a process."""

    stack: Stack  # of the main thread
    gil_stack: Stack = ()  # of the thread that holds the GIL; empty: none does, or it is unknown
    gil_is_main: bool = False
    threads: tuple[NamedThread, ...] = ()  # all but the main thread


def from_py_spy(output: bytes, pid: int) -> Reading | None:
    """Parses the output of `py-spy dump --json`; None if it is invalid or the main thread has no Python frame."""
    try:
        threads: list[dict[str, Any]] = json.loads(output)
        # The main thread's id is that of the process; if py-spy does not know ids, Python lists the oldest last.
        main = next((thread for thread in threads if thread["os_thread_id"] == pid), threads[-1])
        holder = next((thread for thread in threads if thread.get("owns_gil") is True), None)
        stack, gil_stack = _frames(main), () if holder is None else _frames(holder)
        others = [thread for thread in threads if thread is not main][:THREADS_MAX]
        named = tuple(NamedThread(_thread_name(each), _frames(each)[-THREAD_FRAMES_MAX:]) for each in others)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return Reading(stack, gil_stack, holder is main, named) if stack else None


def _thread_name(thread: dict[str, Any]) -> str:
    return str(thread.get("thread_name") or "without a name")[:NAME_CHARACTERS_MAX]


def _frames(thread: dict[str, Any]) -> Stack:
    frames = [
        _frame(str(each["filename"]), str(each["name"]), int(each["line"])) for each in thread["frames"][:FRAMES_MAX]
    ]
    return tuple(reversed(frames))


def _frame(file: str, name: str, line: int) -> Frame:
    """Returns a frame within bounds: a worker may have made it up."""
    return Frame(file[-PATH_CHARACTERS_MAX:], name[:NAME_CHARACTERS_MAX], max(0, min(line, LINE_MAX)))


def from_faulthandler(text: str) -> Stack | None:
    """Parses the first thread of a faulthandler dump; None if it is cut, has no thread, or that has no Python frame."""
    if is_cut(text):
        return None
    frames: list[Frame] = []
    inside = False
    for line in text[:TEXT_CHARACTERS_MAX].splitlines():
        if _THREAD.match(line):
            if inside:
                break
            inside = True
        elif inside and (found := _FRAME.match(line)) and len(frames) < FRAMES_MAX:
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames.append(_frame(found["file"], found["name"], number))
    return tuple(reversed(frames)) or None


def is_cut(text: str) -> bool:
    """Returns whether faulthandler, which prints 100 threads at most, has left out the oldest ones: so the main one."""
    return text[-TAIL_CHARACTERS:].rstrip("\n").rpartition("\n")[2] == "..."


def was_forced(text: str) -> bool:
    """Returns whether a signal made the process write this: its client's own thread was not able to answer."""
    return any(line.startswith("Current thread") and _THREAD.match(line) for line in text.splitlines())


def main_thread_first(text: str) -> str:
    """Moves the main thread to the top: faulthandler lists threads newest first, so the main thread last.

    Changes nothing in a dump that is cut, because the main thread is missing there.
    """
    if is_cut(text):
        return text
    blocks: list[list[str]] = []
    for line in text[:TEXT_CHARACTERS_MAX].splitlines():
        if _THREAD.match(line):
            blocks.append([])
        if blocks:
            blocks[-1].append(line)
    return "\n".join(line for block in [*blocks[-1:], *blocks[:-1]] for line in block)


def grouped(stacks: Mapping[int, Stack]) -> tuple[StackGroup, ...]:
    """Groups ranks with equal stacks; the smallest groups (the unusual ones) come first."""
    together: dict[tuple[tuple[str, str, int], ...], list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        together.setdefault(tuple(frame.place for frame in stack), []).append(rank)
    groups = [
        StackGroup(tuple(ranks), "\n".join(map(str, stack)), stack[-FRAMES_JUDGED_MAX:])
        for ranks in together.values()
        for stack in [stacks[ranks[0]]]
    ]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))
