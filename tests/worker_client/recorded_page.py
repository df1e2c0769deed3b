"""A page that notes each write, and the progress of a rank that writes into it."""

from __future__ import annotations

from holdfast_wire import page_layout as layout

from worker_client.progress_page_writer import ProgressPage
from worker_client.rank_progress import Progress

NAMES = ("step", "setup", "checkpointing")


class Recorder:
    """Replaces the words of a page and notes each write."""

    def __init__(self) -> None:
        self.values = [0] * layout.PAGE_WORDS
        self.stores: list[int] = []

    def __setitem__(self, word: int, value: int) -> None:
        self.values[word] = value
        self.stores.append(word)

    def __getitem__(self, word: int) -> int:
        return self.values[word]


def recorded() -> tuple[Progress, Recorder]:
    recorder = Recorder()
    progress = Progress()
    progress.begin()
    progress.adopt(ProgressPage(recorder, is_shared=True), NAMES)  # pyright: ignore[reportArgumentType]
    return progress, recorder
