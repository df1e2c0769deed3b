"""How is the memory of a failed iteration released without a long search for it?

A caught exception holds the frames in which it was raised, and they hold models and process groups.
"""

from __future__ import annotations

import gc
import os
import resource
import traceback
from types import TracebackType
from typing import cast

from worker_client.inprocess.devices.cuda import cuda_in_use

YOUNG_GENERATION = 1  # only recent objects; searching all would take longer than the rest of a restart
GROWN_FACTOR = 1.25  # growth since the last full collection that may be a failed model
GROWN_LEAST_BYTES = 512 * 1024**2  # smaller growth is ignored
ERRORS_MAX = 10_000  # in one chain or group
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep  # all of worker_client.inprocess
TRACEBACK_CHARACTERS_MAX = 16 * 1024  # a quarter of a pipe's buffer, so a restart never waits for a reader


def forget(error: BaseException) -> None:
    """Clears the frames of the exception and of its causes. Its traceback can still be printed."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left and len(seen) < ERRORS_MAX:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if each.__traceback__ is not None:
            traceback.clear_frames(each.__traceback__)
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", each).exceptions


class CycleCollection:
    """Collects the reference cycles of failed iterations, among all objects only if that is worth the time.

    A full collection is, if the process uses a GPU, whose memory can't hold a second model, or has grown: a failed
    model that is in a cycle of the oldest generation would never be released.
    """

    def __init__(self) -> None:
        self._resident_bytes = _resident_bytes()  # at the least since the last full collection

    def collect(self) -> None:
        if cuda_in_use() is not None:
            gc.collect()
            return
        gc.collect(YOUNG_GENERATION)
        resident_bytes = _resident_bytes()
        if not resident_bytes:
            return
        self._resident_bytes = min(self._resident_bytes, resident_bytes)
        if resident_bytes >= max(GROWN_FACTOR * self._resident_bytes, self._resident_bytes + GROWN_LEAST_BYTES):
            gc.collect()
            self._resident_bytes = _resident_bytes()


def _resident_bytes() -> int:
    """Returns how much memory of this process is resident; 0 if that cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # such as too many open files
        return 0


def traceback_text(error: BaseException) -> str:
    """Returns the error's traceback from the function on, for the log; cuts the middle out of a very long one."""
    text = "".join(traceback.format_exception(type(error), error, _from_the_function(error.__traceback__)))
    if len(text) <= TRACEBACK_CHARACTERS_MAX:
        return text
    half = TRACEBACK_CHARACTERS_MAX // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"


def _from_the_function(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part below the Wrapper's own calls; all of it if nothing is."""
    below = trace
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_OWN):
        below = below.tb_next
    return below or trace


def in_a_line(error: BaseException) -> str:
    """Returns the error's kind and message without line breaks."""
    return " ".join("".join(traceback.format_exception_only(error)).split())
