"""Which sentence of which user's document does a test show, and does it still stand at that line?

The documents lie beside the checkout, in ../shared/seeds. Tests need only their names: where a document is absent, only
the comparison of the lines is skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from supervisor.config import JobSpec
from tests.config.runs import request

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"

P = ParamSpec("P")
R = TypeVar("R")


class Document:
    """A document, and its statements that the tests of one file show."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._said: list[tuple[int, str]] = []

    def says(self, line: int, words: str, *, instead: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Marks the test that shows the statement with these words, which begins at `line`.

        `instead` is a departure on purpose: "page: words of the sentence there that gives the reason".
        """
        self._said.append((line, words))

        def mark(test: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(test)
            def noted(*args: P.args, **kwargs: P.kwargs) -> R:
                try:
                    if instead:
                        page, _, reason = instead.partition(": ")
                        assert reason in _plain((ROOT / "docs" / page).read_text())
                    return test(*args, **kwargs)
                except Exception as error:
                    error.add_note(f"{self.name}, line {line}: {words}")
                    raise

            return noted

        return mark

    def compare(self) -> None:
        """Checks that the document has each statement at its line."""
        path = SEEDS / f"{self.name}.txt"
        if not path.is_file():
            pytest.skip(f"{path} is absent, so no line can be compared")
        lines = path.read_text().splitlines()
        moved: list[str] = []
        for line, words in self._said:
            first, following = _plain(lines[line - 1]), _plain(" ".join(lines[line - 1 : line + 3]))
            if not 0 <= following.find(_plain(words)) <= len(first):
                moved.append(f"line {line}: {words}")
        assert not moved, "\n".join(moved)


def asked(*flags: str, environ: dict[str, str] | None = None) -> JobSpec:
    """Returns what `holdfast run` makes of these flags."""
    return request(*flags, "train.py", environ=environ).spec


def _plain(text: str) -> str:
    return " ".join(text.split())
