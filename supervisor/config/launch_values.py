"""How are torchrun's own values read: nodes, ranks, redirects, addresses?"""

from __future__ import annotations

import re
from typing import cast

from supervisor.config.job_spec import Redirect
from supervisor.config.values import Kind, Shape, ValueProblem, plain, show_list

WORKERS_MAX = 1024  # workers on one node
NODES_MAX = 100_000
StreamMap = tuple[tuple[int | None, Redirect], ...]
WORKER_WORDS = ("auto", "cpu", "gpu")

_STREAM_MAP = re.compile(r"[0-9]+:[0-3](,[0-9]+:[0-3])*")
_MODULES = re.compile(r"[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*")


def parse_nodes(value: str) -> tuple[int, int]:
    """Reads MIN or MIN:MAX."""
    parts = value.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueProblem("it is neither a number of nodes nor MIN:MAX", "write 1")
    low, high = int(parts[0][:9]), int(parts[-1][:9])
    if not 1 <= low <= high:
        raise ValueProblem(
            "MIN must be 1 or more and MAX no less than MIN", f"write {high}:{low}" if high else "write 1"
        )
    if high > NODES_MAX:
        raise ValueProblem(f"a job has at most {NODES_MAX} nodes", f"write {NODES_MAX} or fewer")
    return low, high


def show_nodes(value: object) -> str:
    low, high = cast("tuple[int, int]", value)
    return str(low) if low == high else f"{low}:{high}"


def parse_workers(value: str) -> int | str:
    """Reads a number, or auto, cpu or gpu, which are counted later."""
    word = value.strip().lower()
    if word in WORKER_WORDS:
        return word
    if word == "xpu":
        raise ValueProblem("Intel GPUs are not supported yet", "write their number")
    try:
        count = int(plain(word))
    except ValueError:
        raise ValueProblem("it is neither a number nor auto, cpu or gpu", "write the number of workers") from None
    if not 1 <= count <= WORKERS_MAX:
        raise ValueProblem(f"a node has 1 to {WORKERS_MAX} workers", "write a number in this range")
    return count


def parse_streams(value: str) -> StreamMap:
    """Reads torchrun's `3` for all ranks, or `0:1,1:3` for each."""
    if value in ("0", "1", "2", "3"):
        return () if value == "0" else ((None, Redirect(int(value))),)
    if not _STREAM_MAP.fullmatch(value):
        raise ValueProblem(
            "it is neither 0 to 3 nor a map of local ranks", "write 3 (both streams of all ranks) or 0:1,1:2"
        )
    pairs = [part.split(":") for part in value.split(",")]
    return tuple({int(rank): Redirect(int(what)) for rank, what in pairs}.items())


def show_streams(value: object) -> str:
    pairs = cast("StreamMap", value)
    return ",".join(str(int(what)) if rank is None else f"{rank}:{int(what)}" for rank, what in pairs) or "0"


def parse_ranks(value: str) -> tuple[int, ...]:
    """Reads local ranks separated by commas; an empty text means all ranks."""
    if not value.strip():
        return ()
    ranks = [part.strip() for part in value.split(",")]
    if not all(rank.isascii() and rank.isdigit() for rank in ranks):
        raise ValueProblem("it is not a list of local ranks", "write ranks such as 0,1,2")
    return tuple(sorted({int(rank) for rank in ranks}))


def parse_endpoint(value: str) -> str:
    """Reads HOST or HOST:PORT, an IPv6 address in brackets; an empty text means none."""
    host, port = split_endpoint(value)
    if value and not host:
        raise ValueProblem("it names no host", "write HOST:PORT, an IPv6 address in brackets")
    if port is not None and not 0 <= port <= 65535:
        raise ValueProblem("a port is 0 to 65535", "write HOST:PORT")
    return value


def split_endpoint(value: str) -> tuple[str, int | None]:
    """Returns the host without brackets, and the port if there is one. Raises ValueProblem."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]*))(?::([0-9]{1,9}))?", value)
    if not found:
        raise ValueProblem("it is not HOST:PORT", "write HOST:PORT, an IPv6 address in brackets")
    _check_host_name(found[2] or "")
    return found[1] or found[2] or "", int(found[3]) if found[3] is not None else None


def join_endpoint(host: str, port: int) -> str:
    """Returns HOST:PORT, as split_endpoint reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(value: str) -> str:
    """Reads a host name or an address; IPv6 with or without brackets."""
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", bare):
        raise ValueProblem("it is neither a host name nor an address", "write one such as 127.0.0.1")
    _check_host_name(bare)
    return bare


def _check_host_name(name: str) -> None:
    """Refuses what no name server is asked for: Python cannot encode it. Raises ValueProblem."""
    if name and ":" not in name and not all(0 < len(part) < 64 for part in name.removesuffix(".").split(".")):
        raise ValueProblem("each part of a host's name has 1 to 63 characters", "write one such as node1.cluster")


def parse_preload(value: str) -> str:
    if value in ("auto", "torch", "none") or _MODULES.fullmatch(value):
        return value
    raise ValueProblem("it is neither auto, torch, none nor a list of modules", "write modules such as torch,numpy")


def parse_rendezvous_options(value: str) -> tuple[tuple[str, str], ...]:
    """Reads `key=value,key=value`."""
    pairs: list[tuple[str, str]] = []
    for part in value.split(",") if value.strip() else ():
        key, equals, setting = part.partition("=")
        if not equals or not key.strip():
            raise ValueProblem(f"'{part.strip()}' is not KEY=VALUE", "write KEY=VALUE,KEY=VALUE")
        pairs.append((key.strip(), setting.strip()))
    return tuple(pairs)


def show_rendezvous_options(value: object) -> str:
    pairs = cast("tuple[tuple[str, str], ...]", value)
    return ",".join(f"{key}={setting}" for key, setting in pairs)


OTHER_BACKENDS = "holdfast.rendezvous_backends"  # the group of entry points (supervisor/ports/rendezvous_backend.py)

# torchrun's names for what these backends do.
BACKENDS = {"static": "embedded", "c10d": "embedded", "etcd-v2": "etcd"}


def parse_backend(value: str) -> str:
    name = value.lower()
    if name in BACKENDS or name in BACKENDS.values():
        return name
    from importlib.metadata import entry_points  # It is slow to load, and seldom needed.

    if entry_points(group=OTHER_BACKENDS, name=value):
        return value
    raise ValueProblem("no installed package offers such a backend", "write c10d or etcd")


BACKEND = Kind("c10d|static|embedded|etcd|etcd-v2|NAME", "", Shape.TEXT, parse_backend)
NODES = Kind("MIN[:MAX]", "nodes", Shape.TEXT, parse_nodes, show_nodes)
WORKERS = Kind("N|auto|cpu|gpu", "workers", Shape.WORD, parse_workers)
STREAMS = Kind("STREAMS", "", Shape.TEXT, parse_streams, show_streams)
RANKS = Kind("RANKS", "", Shape.TEXT, parse_ranks, show_list)
ENDPOINT = Kind("HOST:PORT", "", Shape.TEXT, parse_endpoint)
ADDRESS = Kind("ADDRESS", "", Shape.TEXT, parse_address)
PRELOAD = Kind("auto|torch|none|MODULES", "", Shape.TEXT, parse_preload)
RENDEZVOUS_OPTIONS = Kind("KEY=VALUE,...", "", Shape.TEXT, parse_rendezvous_options, show_rendezvous_options)
