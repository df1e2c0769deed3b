"""How do the supervisor's own words get into systemd's journal, with the job and the rank as separate fields?

It uses the journal's native protocol, one datagram per message: `journalctl JOB_ID=train RANK=3` finds them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from supervisor.core.printable import lines

SOCKET = "/run/systemd/journal/socket"
STREAM_VARIABLE = "JOURNAL_STREAM"  # device and inode of the stream that systemd gave to a service
IDENTIFIER = "holdfast"
DATAGRAM_BYTES_MAX = 64 * 1024
FIELDS = {"job_id": "JOB_ID", "cycle": "CYCLE", "rank": "RANK", "kind": "HOLDFAST_EVENT", "run": "HOLDFAST_RUN"}
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def is_stderr(environment: Mapping[str, str] | None = None, address: str = SOCKET) -> bool:
    """Returns whether stderr goes to the journal already, where its lines would have no fields.

    Returns False, too, if the journal's own socket does not exist.
    """
    told = (os.environ if environment is None else environment).get(STREAM_VARIABLE, "")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return told == f"{found.st_dev}:{found.st_ino}" and os.path.exists(address)


class JournaldHandler(logging.Handler):
    """Sends records to the journal. Never blocks or raises: records that the journal refuses are counted as lost."""

    def __init__(self, address: str = SOCKET) -> None:
        super().__init__(logging.INFO)
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(datagram(record), self._address)
        except OSError:
            self.lost += 1

    def close(self) -> None:
        self._socket.close()
        super().close()


def datagram(record: logging.LogRecord) -> bytes:
    fields = {
        "MESSAGE": lines(record.getMessage()),
        "PRIORITY": str(next((number for level, number in _PRIORITIES if record.levelno >= level), 7)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "LOGGER": record.name,
    }
    for name, field in FIELDS.items():
        value = getattr(record, name, None)
        if value is not None:
            fields[field] = str(value)
    if record.exc_info:
        fields["TRACEBACK"] = logging.Formatter().formatException(record.exc_info)
    packed = b"".join(_field(name, value) for name, value in fields.items())
    if len(packed) <= DATAGRAM_BYTES_MAX:
        return packed
    short = fields | {"MESSAGE": fields["MESSAGE"][:4096], "TRACEBACK": "too long"}
    return b"".join(_field(name, value) for name, value in short.items())


def _field(name: str, value: str) -> bytes:
    """Returns a field in binary form if a line would be cut: the name, the length in 64 bits, the bytes."""
    data = value.encode(errors="backslashreplace")
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%s=%s\n" % (name.encode(), data)
