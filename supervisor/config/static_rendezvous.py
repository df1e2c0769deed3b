"""Where do nodes meet that are started with torchrun's default, the static rendezvous?

Each is told `--nnodes N --node-rank R --master-addr H --master-port P`. The node at H leads at that port, and the
workers' store gets one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from supervisor.config import launch_settings
from supervisor.config.given import Given, read

PORT = 29500  # torchrun's default
ID = "none"  # torchrun's, where no --rdzv-id is given
STATIC = "static"


def with_meeting(known: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the settings with the endpoint that the master's address means, if nothing else says where to meet."""
    address = known.get(launch_settings.MASTER_ADDRESS.name)
    endpoint = known.get(launch_settings.ENDPOINT.name)
    if not _is_static(known) or address is None or not address.value or (endpoint is not None and endpoint.value):
        return dict(known)
    port = known.get(launch_settings.MASTER_PORT.name)
    host = f"[{address.value}]" if ":" in str(address.value) else str(address.value)
    shown = address.shown if port is None else f"{address.shown} {port.shown}"
    text = f"{host}:{PORT if port is None else port.value}"
    meeting = read(launch_settings.ENDPOINT, text, shown=shown, removal=address.removal, from_flag=address.from_flag)
    stores = (launch_settings.MASTER_ADDRESS.name, launch_settings.MASTER_PORT.name)
    return {name: one for name, one in known.items() if name not in stores} | {meeting.setting.name: meeting}


def with_id(known: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the settings with torchrun's id for nodes that have ranks, if nothing else names their job."""
    rank = known.get(launch_settings.NODE_RANK.name)
    named = any(known.get(each.name) for each in (launch_settings.JOB_ID, launch_settings.RUN_ID))
    if not _is_static(known) or rank is None or named:
        return dict(known)
    given = read(launch_settings.RUN_ID, ID, shown=f"--rdzv-id {ID}", removal="write --rdzv-id ID", from_flag=True)
    return {**known, given.setting.name: given}


def _is_static(known: Mapping[str, Given]) -> bool:
    asked, backend = known.get(launch_settings.NNODES.name), known.get(launch_settings.BACKEND.name)
    if asked is None or cast("tuple[int, int]", asked.value)[1] == 1:
        return False
    return backend is None or backend.value == STATIC
