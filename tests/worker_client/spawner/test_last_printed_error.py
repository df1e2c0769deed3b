"""What was the last exception or fatal error of a failed process, according to its output?"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_client.spawner.last_printed_error import LINE_CHARACTERS_MAX, TAIL_BYTES, last_words

PLAIN = "import sys\ndef f(): raise ValueError('bad batch 7')\nf()"
CHAINED = "try:\n  1 / 0\nexcept Exception:\n  raise KeyError('gone')"
CAUSED = "try:\n  1 / 0\nexcept Exception as error:\n  raise RuntimeError('wrapped') from error"
GROUP = "raise ExceptionGroup('two', [ValueError('a'), ExceptionGroup('in', [OSError('b')])])"
GROUPED_CHAIN = "try:\n  1 / 0\nexcept Exception:\n  raise ExceptionGroup('one', [TypeError('c')])"
NOTED = "error = ValueError('first line\\nsecond line'); error.add_note('a note'); raise error"
BARE = "class Odd(Exception): pass\nraise Odd"
SYNTAX = "def f(:\n  pass"
THEN_MORE = (
    "import atexit, sys\natexit.register(lambda: print('Exception ignored? no: bye', file=sys.stderr))\n" + PLAIN
)
IN_TORCHS_WORDS = (
    "import sys, traceback\n"
    "def hook(*error):\n"
    "  for line in ''.join(traceback.format_exception(*error)).splitlines():\n"
    "    print('[rank3]: ' + line, file=sys.stderr)\n"
    "sys.excepthook = hook\n" + PLAIN
)
IN_TORCHS_WORDS_AFTER_A_RESTART = IN_TORCHS_WORDS.replace("'[rank3]: ' + line", "'[rank3]: [rank2]: ' + line")
HANDLED = (
    "import sys, traceback\ntry:\n  1 / 0\nexcept Exception:\n  traceback.print_exc()\n"
    "print('goes on', file=sys.stderr)\n"
)


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (PLAIN, "ValueError: bad batch 7"),
        (CHAINED, "KeyError: 'gone'"),
        (CAUSED, "RuntimeError: wrapped"),
        (GROUP, "ExceptionGroup: two (2 sub-exceptions): ValueError: a"),
        (GROUPED_CHAIN, "ExceptionGroup: one (1 sub-exception): TypeError: c"),
        (NOTED, "ValueError: first line"),
        (BARE, "Odd"),
        (SYNTAX, "SyntaxError: invalid syntax"),
        (THEN_MORE, "ValueError: bad batch 7"),
        (IN_TORCHS_WORDS, "ValueError: bad batch 7"),
        (IN_TORCHS_WORDS_AFTER_A_RESTART, "ValueError: bad batch 7"),
        (HANDLED + "sys.exit(1)", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(1)", ""),
        (HANDLED + "sys.exit(3)", ""),
        ("import argparse; argparse.ArgumentParser('train.py').parse_args(['--lr'])",
         "train.py: error: unrecognized arguments: --lr"),
    ],
)  # fmt: skip
def test_what_this_interpreter_prints(script: str, wanted: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert last_words(done.stderr, code=done.returncode, signal_number=None) == wanted


TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: bad\n'


@pytest.mark.parametrize(
    ("text", "number", "wanted"),
    [
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal access\n"
            "Exception raised from x at y.cpp:7 (most recent call first):\nframe #0: f + 0x1 (0x2 in libc10.so)\n",
            signal.SIGABRT, "c10::Error: CUDA error: an illegal access",
        ),
        ("terminate called without an active exception\n", signal.SIGABRT,
         "terminate called without an active exception"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"a\"\n",
         signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
        ("python: a.c:7: f: Assertion `x' failed.\n", signal.SIGABRT, "python: a.c:7: f: Assertion `x' failed."),
        ("free(): invalid pointer\n", signal.SIGABRT, "free(): invalid pointer"),
        ("*** stack smashing detected ***: terminated\n", signal.SIGABRT,
         "*** stack smashing detected ***: terminated"),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by shared memory\n"
         "ERROR: Unexpected bus error encountered in worker.\n", signal.SIGBUS,
         "ERROR: Unexpected bus error encountered in worker."),
        (TRACE, signal.SIGABRT, "ValueError: bad"),
        # It was handled: the signal ended the process.
        (TRACE, signal.SIGKILL, ""),
        (TRACE, signal.SIGTERM, ""),
        ("all is well\n", signal.SIGSEGV, ""),
    ],
)  # fmt: skip
def test_what_libraries_print(text: str, number: int, wanted: str) -> None:
    assert last_words(text.encode(), code=None, signal_number=number) == wanted


def test_what_is_told_is_one_short_line_without_control_characters() -> None:
    text = TRACE.replace("bad", "\x1b[31m" + "x" * 2 * LINE_CHARACTERS_MAX)
    told = last_words(text.encode(), code=1, signal_number=None)
    assert told.startswith("ValueError:  [31mxxx")
    assert len(told) == LINE_CHARACTERS_MAX
    assert last_words(b"\r 50%|\xff\xfe | 1/2" + TRACE.encode(), code=1, signal_number=None) == "ValueError: bad"


def test_a_traceback_of_which_only_the_end_is_left_is_told() -> None:
    tail = ("x" * TAIL_BYTES + "\n" + TRACE).encode()[-TAIL_BYTES:]
    assert last_words(tail, code=1, signal_number=None) == "ValueError: bad"


PIECES = st.sampled_from(
    [TRACE, "\n", "  | ", "  + Exception Group Traceback (most recent call last):\n", "Type:\n", "    +-+---- 1 ----\n",
     "terminate called after throwing an instance of 'x'\n", "  what():  y\n", "During handling of the above\n", "é"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=20)), st.sampled_from([(1, None), (3, None), (None, 6), (None, 9)]))
def test_whatever_is_printed_nothing_breaks(pieces: list[str], ending: tuple[int | None, int | None]) -> None:
    told = last_words("".join(pieces).encode(errors="replace"), code=ending[0], signal_number=ending[1])
    assert "\n" not in told
    assert len(told) <= LINE_CHARACTERS_MAX
