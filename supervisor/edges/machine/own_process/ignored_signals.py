"""Which signals does a launcher forward, and do its children handle those that it was started to ignore?

Without anyio, because the first spawner starts before that is loaded.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType

from supervisor.errors import ConfigurationError


def numbers(names: Sequence[str]) -> tuple[signal.Signals, ...]:
    """Returns the signals of these names, each once. Raises ConfigurationError for an unknown name."""
    found: dict[signal.Signals, None] = {}
    for name in names:
        try:
            found[signal.Signals[name.strip().upper()]] = None
        except KeyError:
            raise ConfigurationError(
                f"cannot handle signal {name!r}: there is none of this name; write SIGTERM, SIGINT, SIGHUP, SIGQUIT …"
            ) from None
    return tuple(found)


def forwarded(names: Sequence[str]) -> tuple[str, ...]:
    """Returns which of these signals a launcher forwards: not SIGHUP while it is ignored, as nohup has it."""
    hangup = signal.SIGHUP if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else None
    return tuple(number.name for number in numbers(names) if number is not hangup)


def reset_in_children(names: Sequence[str]) -> None:
    """Handles those of these signals that are ignored by doing nothing, so that an execve resets them to the default.

    It would keep them ignored. A shell without job control ignores SIGINT and SIGQUIT in each program that it starts
    in the background. Call it before any child is started, in the main thread.
    """
    for number in numbers(names):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handles a signal."""
