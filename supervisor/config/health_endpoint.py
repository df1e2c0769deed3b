"""Which socket does --ft-node-health-check-endpoint name?"""

from __future__ import annotations

import os

from supervisor.config.values import Kind, Shape, ValueProblem

_PATH_BYTES_MAX = 107  # of a Unix socket
_REMEDY = "write the path of the socket, such as /var/run/nvhcd.sock or unix:///var/run/nvhcd.sock"


def parse_endpoint(text: str) -> str:
    """Returns the path of the socket. Raises ValueProblem for anything but a Unix socket."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "unix":
        raise ValueProblem(f"{scheme}:// is not a Unix socket", _REMEDY)
    path = rest if separator else text
    if separator and not path.startswith("/"):
        raise ValueProblem("the path behind unix:// is not absolute", _REMEDY)
    if text and not separator and (path.startswith("unix:") or "/" not in path):
        raise ValueProblem("it is neither a path nor unix:///PATH", _REMEDY)
    if "\0" in path or len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ValueProblem(f"the path of a socket has at most {_PATH_BYTES_MAX} bytes", _REMEDY)
    return path


ENDPOINT = Kind("SOCKET", "", Shape.TEXT, parse_endpoint)
