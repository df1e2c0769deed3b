"""Where do nodes meet that are started with torchrun's default, the static rendezvous, and which job is theirs?

Each is told `--nnodes N --node-rank R --master-addr H --master-port P`. The node at H leads at that port, and the
workers' store gets one of its own. Nodes without an id share torchrun's, there and by `c10d`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from supervisor.config import launch_settings
from supervisor.config.launch_values import join_endpoint
from supervisor.config.value_origin import Given, read

PORT = 29500  # torchrun's default
ID = "none"  # torchrun's, where no --rdzv-id is given
STATIC, C10D = "static", "c10d"


def with_meeting(known: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the settings with the endpoint that the master's address means, if nothing else says where to meet."""
    address = known.get(launch_settings.MASTER_ADDRESS.name)
    endpoint = known.get(launch_settings.ENDPOINT.name)
    if not _is_static(known) or address is None or not address.value or (endpoint is not None and endpoint.value):
        return dict(known)
    port = known.get(launch_settings.MASTER_PORT.name)
    shown = address.shown if port is None else f"{address.shown} {port.shown}"
    text = join_endpoint(str(address.value), PORT if port is None else cast("int", port.value))
    meeting = read(launch_settings.ENDPOINT, text, shown=shown, removal=address.removal, from_flag=address.from_flag)
    stores = (launch_settings.MASTER_ADDRESS.name, launch_settings.MASTER_PORT.name)
    return {name: one for name, one in known.items() if name not in stores} | {meeting.setting.name: meeting}


def with_id(known: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the settings with torchrun's id, if nothing else names the job of nodes that torchrun would take so."""
    if is_named(known) or not (_has_static_ranks(known) or _meets_by_c10d(known)):
        return dict(known)
    given = read(launch_settings.RUN_ID, ID, shown=f"--rdzv-id {ID}", removal="write --rdzv-id ID", from_flag=True)
    return {**known, given.setting.name: given}


def is_named(known: Mapping[str, Given]) -> bool:
    """Returns whether something names the job. An empty id is none."""
    named = (known.get(each.name) for each in (launch_settings.JOB_ID, launch_settings.RUN_ID))
    return any(each is not None and each.value for each in named)


def _is_static(known: Mapping[str, Given]) -> bool:
    backend = known.get(launch_settings.BACKEND.name)
    return _has_several_nodes(known) and (backend is None or backend.value == STATIC)


def _has_static_ranks(known: Mapping[str, Given]) -> bool:
    return _is_static(known) and launch_settings.NODE_RANK.name in known


def _meets_by_c10d(known: Mapping[str, Given]) -> bool:
    backend, endpoint = known.get(launch_settings.BACKEND.name), known.get(launch_settings.ENDPOINT.name)
    if backend is None or backend.value != C10D or endpoint is None:
        return False
    return _has_several_nodes(known) and bool(endpoint.value)


def _has_several_nodes(known: Mapping[str, Given]) -> bool:
    asked = known.get(launch_settings.NNODES.name)
    return asked is not None and cast("tuple[int, int]", asked.value)[1] > 1
