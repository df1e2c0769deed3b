"""What did a failed process print last: which exception, or which fatal error?

Pure. Reads the end of its stderr, for scripts without torch's @record. Leaves out anything that is not the reason for
this end: an exception that was printed and handled says nothing about a process killed by SIGKILL.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

TAIL_BYTES = 32 * 1024  # of stderr: enough for the last traceback and what C++ prints after it
LINE_CHARACTERS_MAX = 500
UNCAUGHT_EXIT_CODE = 1  # Python's, for any exception
FATAL_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)

_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]: ?)+")  # torch prints one for each of its groups before every line
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):$")  # a progress bar may stand before it
_INSIDE_GROUP = re.compile(r"^ {4,}[|+]")
_SYNTAX = re.compile(r'^  File ".*", line \d+$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:)?$")
_LEAF = re.compile(r"^ *\| {1,2}(?P<line>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$")
_TERMINATE = re.compile(r"^terminate called (?:after throwing an instance of '(?P<type>.*)'|(?P<other>.*))$")
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<what>.*)$")
_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|.*: Assertion [`'].*' failed\.?|\*\*\* .* \*\*\*.*|\*\*\* SIG[A-Z]+ received .*"
    r"|(?:free|malloc|realloc|munmap_chunk|corrupted|double free).*(?:\(\)|size|pointer|corruption|list).*"
    r"|.*Check failed: .*|ERROR: Unexpected .* encountered in worker\.|SIG[A-Z]+\(\d+\), PID: .*)$"
)
_USAGE = re.compile(r"^\S+: error: .+$")


def last_words(tail: bytes, *, code: int | None, signal_number: int | None) -> str:
    """Returns a line; "" if nothing in `tail` is the reason. Exactly one of `code` and `signal_number` is not None."""
    lines = [_RANK_PREFIX.sub("", line) for line in tail.decode(errors="replace").splitlines()]
    if signal_number is not None:
        found = _fatal(lines) if signal_number in FATAL_SIGNALS else ""
    elif code == UNCAUGHT_EXIT_CODE:
        found = _exception(lines, at_end=False)
    else:
        found = _exception(lines, at_end=True) or _usage(lines)
    return _printable(found)


# --- Python --------------------------------------------------------------------------------------------------------


def _exception(lines: list[str], *, at_end: bool) -> str:
    """Returns the last line of the last traceback. `at_end`: only if nothing was printed after it."""
    told = ""
    for number, line in enumerate(lines):
        if _TRACEBACK.search(line) and not _is_inside_group(lines, number):
            told = _told_by(lines, number + 1, at_end=at_end)
        elif _SYNTAX.match(line) and not told:
            told = _syntax_error(lines, number + 1) or told
    return told


def _is_inside_group(lines: list[str], number: int) -> bool:
    """Returns whether the line is inside a group: tracebacks of its members are indented deeper than its own."""
    after_mark = number > 0 and lines[number - 1].lstrip().startswith("+-+---")
    return after_mark or _INSIDE_GROUP.match(lines[number]) is not None


def _told_by(lines: list[str], start: int, *, at_end: bool) -> str:
    for number in range(start, len(lines)):
        is_group = lines[number].startswith("  |")
        line = lines[number].removeprefix("  |").removeprefix(" ") if is_group else lines[number]
        if not line.strip() or line.startswith(" "):
            continue  # Frames, their source and the marks below it are indented.
        if _EXCEPTION.match(line) is None:
            return ""
        if is_group:
            leaf = next(_leaves(lines[number + 1 :]), "")
            return f"{line}: {leaf}" if leaf else line
        rest = [each for each in lines[number + 1 :] if each.strip()]
        if at_end and rest and not line.endswith(":"):
            return "" if any(not each.startswith(" ") for each in rest) else line
        return f"{line} {rest[0].strip()}" if line.endswith(":") and rest else line
    return ""


def _leaves(lines: list[str]) -> Iterator[str]:
    """Yields the members of an exception group."""
    for line in lines:
        found = _LEAF.match(line.replace("    ", "", 1) if line.startswith("      ") else line.lstrip())
        found = found or _LEAF.match(line)
        if found is not None and "sub-exception" not in line:
            yield found["line"]


def _syntax_error(lines: list[str], start: int) -> str:
    """Returns a syntax error, which has no traceback header if the script itself can't be compiled."""
    for line in lines[start : start + 4]:
        if re.match(r"^(Syntax|Indentation|Tab)Error: ", line):
            return line
    return ""


def _usage(lines: list[str]) -> str:
    """Returns argparse's error if it is the last line."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last if _USAGE.match(last) else ""


# --- C and C++ -----------------------------------------------------------------------------------------------------


def _fatal(lines: list[str]) -> str:
    """Returns the last fatal error of a C or C++ library or the interpreter; else Python's last exception."""
    for number in range(len(lines) - 1, -1, -1):
        terminated = _TERMINATE.match(lines[number])
        if terminated is not None:
            what = next((found["what"] for line in lines[number + 1 : number + 4] if (found := _WHAT.match(line))), "")
            kind = terminated["type"] or f"terminate called {terminated['other']}"
            return f"{kind}: {what}" if what else kind
        if _FATAL.match(lines[number]):
            return lines[number]
    return _exception(lines, at_end=False)


def _printable(line: str) -> str:
    text = "".join(each if each.isprintable() else " " for each in line).strip()
    return text if len(text) <= LINE_CHARACTERS_MAX else text[: LINE_CHARACTERS_MAX - 1] + "…"
