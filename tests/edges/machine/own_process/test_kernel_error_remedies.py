"""Is each limit of the kernel named with what raises it, and nothing else taken for a limit?"""

from __future__ import annotations

import errno
import os
import resource

import pytest

from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError, in_words, is_passing, remedy


@pytest.mark.parametrize(
    ("number", "raises_it"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOMEM, "ulimit -v"),
        (errno.ENOSPC, "free space on that disk"),
        (errno.EDQUOT, "free space on that disk"),
    ],
)
def test_a_limit_is_named_with_what_raises_it(number: int, raises_it: str) -> None:
    error = OSError(number, os.strerror(number))
    assert raises_it in remedy(error)
    assert in_words(error).startswith(os.strerror(number))
    assert raises_it in in_words(error)


def test_what_is_no_limit_has_no_remedy() -> None:
    for error in (OSError(errno.ENOENT, "no such file"), OSError("a sentence"), ValueError("x")):
        assert (remedy(error), in_words(error)) == ("", "")


def test_try_again_is_a_limit_only_where_a_process_or_thread_was_wanted() -> None:
    error = BlockingIOError(errno.EAGAIN, "try again")
    assert "ulimit -u" in remedy(error)
    assert in_words(error) == "", "a socket without data says the same"


def test_memory_that_python_lacks_is_a_limit() -> None:
    assert in_words(MemoryError()).startswith("no memory is left; raise the limit on memory (ulimit -v")


def test_a_thread_that_cannot_start_names_the_limit_on_its_stack_only_if_there_is_one() -> None:
    told = in_words(NoThreadError(RuntimeError("can't start new thread")))
    assert "ulimit -u" in told
    assert ("and ulimit -v" in told) == (resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY)


def test_a_missing_thread_or_descriptor_may_be_there_in_a_moment_and_a_full_disk_stays_full() -> None:
    no_process = OSError(errno.EAGAIN, "x")  # from a fork
    passing = (NoThreadError(RuntimeError("can't start new thread")), no_process, OSError(errno.EMFILE, "x"))
    staying = (OSError(errno.ENOSPC, "x"), OSError(errno.EADDRINUSE, "x"), ValueError("x"), None)
    assert [is_passing(each) for each in (*passing, *staying)] == [*[True] * 3, *[False] * 4]
