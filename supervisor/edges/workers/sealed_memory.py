"""How is memory that a worker also maps kept from shrinking, which would kill its reader here (SIGBUS)?"""

from __future__ import annotations

import fcntl
import os

_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL_SHRINK_GROW = 0x1 | 0x2 | 0x4


def create(name: str) -> int:
    """Returns the descriptor of a memory file that can be sealed. Raises OSError."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int, size_bytes: int) -> None:
    """Gives the file its size for good. Raises OSError."""
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEAL_SEAL_SHRINK_GROW)


def is_sealed(descriptor: int) -> bool:
    """Raises OSError if the descriptor is not such a file."""
    return fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEAL_SEAL_SHRINK_GROW == _SEAL_SEAL_SHRINK_GROW
