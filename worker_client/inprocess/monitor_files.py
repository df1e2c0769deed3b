"""Where do a rank's monitor log and its supervisor's pid go, if the script has asked for files?"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from worker_client.inprocess.wrap import Wrapper

FILE_MODE = 0o600

log = logging.getLogger("holdfast.inprocess")


class MonitorFiles:
    """In use within its block. A file that can't be written is a warning, not a fault of the training."""

    def __init__(self, wrapper: Wrapper, initial_rank: int, supervisor_pid: int) -> None:
        self._logfile = _named(wrapper.monitor_process_logfile, initial_rank)
        self._pidfile = _named(wrapper.monitor_process_pidfile, initial_rank)
        self._supervisor_pid = supervisor_pid
        self._handler: logging.Handler | None = None

    def __enter__(self) -> None:
        if self._pidfile is not None and self._supervisor_pid:
            try:
                self._pidfile.touch(FILE_MODE)
                self._pidfile.write_text(f"{self._supervisor_pid}\n")
            except OSError as error:
                log.warning("cannot write monitor_process_pidfile: %s", error)
        if self._logfile is not None:
            try:
                self._logfile.touch(FILE_MODE)
                self._handler = logging.FileHandler(self._logfile)
            except OSError as error:
                log.warning("cannot write monitor_process_logfile: %s", error)
                return
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            log.addHandler(self._handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if self._handler is not None:
            log.removeHandler(self._handler)
            self._handler.close()
            self._handler = None


def _named(path: str | None, initial_rank: int) -> Path | None:
    return None if path is None else Path(os.fspath(path).replace("{rank}", str(initial_rank)))
