"""Does whoever speaks at a terminal know whether the last line there is finished?"""

from __future__ import annotations

import os

from holdfast_wire.console_line import ConsoleLine


def test_a_line_that_another_process_has_begun_is_finished_once() -> None:
    ours = ConsoleLine()
    theirs = ConsoleLine(os.dup(ours.fd))
    try:
        assert not ours.take()
        theirs.printed(2, ord("x"))
        assert ours.take()
        assert not ours.take(), "the caller has finished it"
        theirs.printed(2, ord("x"))
        theirs.printed(2, ord("\n"))
        assert not ours.take()
    finally:
        os.close(theirs.fd)
        os.close(ours.fd)


def test_without_the_file_every_line_counts_as_finished() -> None:
    line = ConsoleLine(1_000_000)  # A number that no process gets.
    line.printed(2, ord("x"))
    assert not line.take()
