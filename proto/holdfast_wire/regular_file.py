"""How is a file opened that may be something else by now, without waiting for a pipe or a device in its place?"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class IrregularFileError(OSError):
    """Raised for something that is there and is not a regular file. `strerror` says what it is."""


def opened(path: Path, *, follows: bool = False) -> BinaryIO:
    """Opens a regular file without waiting for anybody. Raises OSError: IrregularFileError for anything else.

    `follows`: a symbolic link to it will do, too.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(path, "it is a symbolic link") from error
        if error.errno == errno.ENXIO:
            raise _irregular(path, "it is a socket or a device") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise _irregular(path, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _irregular(path: Path, why: str) -> IrregularFileError:
    return IrregularFileError(errno.EBADMSG, why, str(path))
