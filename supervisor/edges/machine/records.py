"""How is a small record of ours read from the disk, whatever is in its place by now?

Another program, a damaged disk or a stranger may have put anything there. Only a regular file is read, so that no pipe
or device keeps the reader waiting, and only up to a size. Its JSON must have the expected shape. Every failure is one
error, which says what is wrong in words for people.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from holdfast_wire import regular_file
from holdfast_wire.regular_file import IrregularFileError

from supervisor.config.values import JOB_ID

Shape = TypeVar("Shape")

# Numbers that the kernel takes: no call fails with an error that nobody expects.
Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Ticks = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
UnixNs = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
JobId = Annotated[str, msgspec.Meta(pattern=rf"^(?:{JOB_ID.pattern})\Z", max_length=64)]


class RecordError(OSError):
    """Raised for something that is there and is not the record. `strerror` says what it is."""


def content(path: Path, *, bytes_max: int) -> bytes:
    """Returns the content of a regular file. Raises OSError: RecordError for anything else, or for a larger file."""
    try:
        with regular_file.opened(path) as file:
            read = file.read(bytes_max + 1)
    except IrregularFileError as error:
        raise _error(path, str(error.strerror)) from error
    if len(read) > bytes_max:
        raise _error(path, f"it has more than {bytes_max} bytes")
    return read


def decoded(text: bytes | str, shape: type[Shape], *, path: Path | None = None) -> Shape:
    """Returns the value of a JSON text. Raises RecordError if it is none, is nested too deeply, or has another shape.

    Names of files that are not text are read, too: `json` writes them as lone surrogates.
    """
    try:
        return msgspec.convert(json.loads(text), shape, str_keys=True)
    except RecursionError:
        raise _error(path, "it is nested too deeply") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise _error(path, str(error)) from error


def read(path: Path, shape: type[Shape], *, bytes_max: int) -> Shape:
    """Returns the record of that file. Raises OSError: RecordError for what is there and is not the record."""
    return decoded(content(path, bytes_max=bytes_max), shape, path=path)


def _error(path: Path | None, why: str) -> RecordError:
    return RecordError(errno.EBADMSG, why, None if path is None else str(path))
