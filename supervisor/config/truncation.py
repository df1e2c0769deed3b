"""How much of a long sentence, or of a long command line, is shown, recorded and sent?

As much as people read. Secrets are hidden before anything is cut, since half of a secret looks like any other word.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from supervisor.config.redaction import redacted, redacted_text

TEXT_CHARACTERS_MAX = 16_384  # of a sentence, of each value of an event's details, and of a command line
MARK_CHARACTERS = 64  # of these, kept for the mark of what was cut


def shown_text(text: str) -> str:
    """Returns the text without secrets, cut with a mark where it is too long."""
    return cut(redacted_text(text))


def cut(text: str) -> str:
    """Returns a text that has no secrets any more, cut with a mark where it is too long."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    kept = TEXT_CHARACTERS_MAX - MARK_CHARACTERS
    return f"{text[:kept]} … ({len(text) - kept:,} more characters)"


def shown_command(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words without secrets. Of a long command line, the last one says how much of it is not shown."""
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    if not ends or ends[-1] <= TEXT_CHARACTERS_MAX:
        return redacted(words)
    left = TEXT_CHARACTERS_MAX - MARK_CHARACTERS
    number = sum(end <= left for end in ends)  # of words that are shown whole
    *whole, last = redacted(words[: number + 1])
    kept = last[: max(0, left - sum(len(word) + 1 for word in whole))]
    more = ends[-1] - sum(ends[number - 1 : number]) - len(kept)
    return (*whole, f"{kept} … ({more:,} more characters)")
