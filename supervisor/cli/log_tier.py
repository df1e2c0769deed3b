"""`holdfast log-tier`: one process of a job's log server, which its supervisor starts."""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
from collections.abc import Sequence
from pathlib import Path

LINE_BYTES_MAX = 64 * 1024
WORDS_MAX = 10_000
WORDS_END_S = 1.0


def execute_argv(argv: Sequence[str]) -> int:
    """Reads settings from the first line of stdin. Returns 0 if everything was passed on. Raises HoldfastError."""
    del argv
    import anyio
    import msgspec

    from supervisor.programs.log_service.log_tier_lifecycle import ignore_signals, run
    from supervisor.programs.log_service.log_tier_settings import Settings

    ignore_signals()
    settings = msgspec.json.decode(_first_line(), type=Settings)
    Path("/proc/self/comm").write_text(f"hf-log-{settings.tier}")  # For ps.
    listener = _open_log(settings.log_path)
    is_complete = anyio.run(run, settings, backend_options={"use_uvloop": True})
    if listener is not None:
        listener.enqueue_sentinel()
        listener.join(WORDS_END_S)
    os._exit(0 if is_complete else 1)  # A thread may hang in a disk.


def _first_line() -> bytes:
    """Reads nothing beyond the first line: the rest belongs to another reader."""
    line = bytearray()
    while len(line) < LINE_BYTES_MAX and (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


class _Words(logging.handlers.QueueListener):
    def join(self, timeout_s: float) -> None:
        """Waits until all that was said before the sentinel is written."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)


def _open_log(path: str) -> _Words | None:
    """Opens the log. Its file may be on a disk that does not answer, so a thread writes it."""
    logger = logging.getLogger("holdfast")
    logger.propagate = False
    logging.raiseExceptions = False  # Words that do not fit are dropped.
    if not path:
        logger.addHandler(logging.NullHandler())
        return None
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    words: queue.Queue[logging.LogRecord] = queue.Queue(WORDS_MAX)
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.handlers.QueueHandler(words))
    listener = _Words(words, handler)
    listener.start()
    return listener
