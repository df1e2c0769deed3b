"""On which ports may the stores of a job be served?"""

from __future__ import annotations

import re
from typing import cast

from supervisor.config.setting import Group, Setting
from supervisor.config.values import Kind, Shape, ValueProblem

PORTS_MIN = 130  # two stores, each with its 64 neighbours
_RANGE = re.compile(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})")


def _parse(value: str) -> tuple[int, ...]:
    """Reads `20000-20999`; an empty text means no range of one's own."""
    if not value.strip():
        return ()
    found = _RANGE.fullmatch(value.strip())
    if found is None:
        raise ValueProblem("it is not a range of ports", "write the first and the last, such as 20000-20999")
    first, last = int(found[1]), int(found[2])
    if not 1024 <= first <= last <= 65535:
        raise ValueProblem("it is not a range between 1024 and 65535", "write such as 20000-20999")
    if last - first + 1 < PORTS_MIN:
        raise ValueProblem(
            f"it has {last - first + 1} ports, and a job needs {PORTS_MIN}: "
            "65 for the running cycle and 65 for the next one",
            f"write such as {first}-{first + 999}" if first + 999 <= 65535 else "write such as 20000-20999",
        )
    return first, last


def _show(value: object) -> str:
    return "-".join(map(str, cast("tuple[int, ...]", value)))


STORE_PORTS = Setting(
    "--store-ports",
    Kind("FIRST-LAST", "", Shape.TEXT, _parse, _show),
    "ports for the store of a cycle and for those that the script opens beside it, if a firewall allows only some",
    Group.NODES,
    path="store_ports",
    default_words="any outside ip_local_port_range",
    other_variables=("HOLDFAST_STORE_PORTS",),
)
