"""The used part of torch.cuda."""

from __future__ import annotations

import threading
from types import SimpleNamespace


class Cuda(SimpleNamespace):
    """The used part of torch.cuda; the device of each thread."""

    def __init__(self, *, is_initialized: bool = True, count: int = 8, error: Exception | None = None) -> None:
        super().__init__()
        self.devices = {threading.get_ident(): 3}
        self.synchronized: list[tuple[int, bool]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self._is_initialized, self._count, self._error = is_initialized, count, error

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._is_initialized

    def current_device(self) -> int:
        return self.devices.get(threading.get_ident(), 0)

    def device_count(self) -> int:
        return self._count

    def set_device(self, device: int) -> None:
        self.devices[threading.get_ident()] = device

    def synchronize(self, device: int) -> None:
        self.synchronized.append((device, threading.current_thread() is threading.main_thread()))
        self.may_end.wait()
        if self._error is not None:
            raise self._error
