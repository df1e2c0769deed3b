"""How is the memory of a failed iteration released without a long search for it?

A caught exception holds the frames in which it was raised, and they hold models and process groups.
"""

from __future__ import annotations

import gc
import os
import traceback
from types import TracebackType
from typing import cast

from worker_client.inprocess.devices.cuda import cuda_in_use

YOUNG_GENERATION = 1  # only recent objects; searching all would take as long as the rest of a restart
ERRORS_MAX = 10_000  # in one chain or group
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep  # all of worker_client.inprocess
STORY_CHARACTERS_MAX = 16 * 1024  # a quarter of a pipe's buffer, so a restart never waits for a reader


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


def collect_garbage() -> None:
    """Collects cycles; among all objects only if the process uses a GPU, whose memory can't hold a second model."""
    gc.collect() if cuda_in_use() is not None else gc.collect(YOUNG_GENERATION)


def story(error: BaseException) -> str:
    """Returns the error's traceback from the function on, for the log; cuts the middle out of a very long one."""
    text = "".join(traceback.format_exception(type(error), error, _from_the_function(error.__traceback__)))
    if len(text) <= STORY_CHARACTERS_MAX:
        return text
    half = STORY_CHARACTERS_MAX // 2
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
