"""With which other nodes does a job run, where do they meet, and under which name does this one join?"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import cast

from supervisor.config import launch_settings
from supervisor.config.given import Given
from supervisor.config.job_spec import Nodes
from supervisor.config.launch_values import split_endpoint
from supervisor.errors import InvalidRequestError

DEFAULT_PORT = 29400  # torchrun's for --rdzv-endpoint
JOIN_TIMEOUT_S = 600.0
TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")


def read(given: Mapping[str, Given], cwd: str) -> Nodes | None:
    """None: the job runs on this node alone. Raises InvalidRequestError or ConfigurationError."""
    asked = given.get(launch_settings.NNODES.name)
    low, high = cast("tuple[int, int]", asked.value) if asked is not None else (1, 1)
    if asked is None or high == 1:
        _check_alone(given)
        return None
    endpoint = given.get(launch_settings.ENDPOINT.name)
    if endpoint is None or not endpoint.value:
        raise asked.problem(
            "--rdzv-endpoint does not say where the nodes meet", "write --rdzv-endpoint HOST:PORT, the same on each"
        )
    host, port = split_endpoint(str(endpoint.value))
    if port == 0:
        raise endpoint.problem("the nodes can't meet at port 0", "write the same port on each")
    if not any(given.get(each.name) for each in (launch_settings.JOB_ID, launch_settings.RUN_ID)):
        raise asked.problem("the nodes do not know which job they share", "write --rdzv-id ID, the same on each")
    options = _options(given)
    token_file = options.get("token_file", "")
    tls = _tls(options, cwd)
    if not token_file and not tls and not _is_of_this_machine(host):
        raise endpoint.problem(
            "anybody who reaches that address could join the job",
            "write --rdzv-conf token_file=F, a secret that is the same on each, or tls_cert, tls_key and tls_ca",
        )
    name = given.get(launch_settings.LOCAL_ADDRESS.name)
    return Nodes(
        min_nodes=low,
        max_nodes=high,
        host=host,
        port=DEFAULT_PORT if port is None else port,
        name=str(name.value) if name is not None and name.value else os.uname().nodename,
        token_file=os.path.join(cwd, token_file) if token_file else "",
        join_timeout_s=_seconds(options.get("join_timeout", str(JOIN_TIMEOUT_S))),
        **tls,
    )


def _check_alone(given: Mapping[str, Given]) -> None:
    rank = given.get(launch_settings.NODE_RANK.name)
    if rank is not None and rank.value != 0:
        raise rank.problem("the only node has rank 0", f"{rank.removal}, or write --nnodes")


def _tls(options: Mapping[str, str], cwd: str) -> dict[str, str]:
    """All three files, or none."""
    found = {key: os.path.join(cwd, options[key]) for key in TLS_KEYS if options.get(key)}
    missing = [key for key in TLS_KEYS if key not in found]
    if found and missing:
        raise InvalidRequestError(
            f"cannot use --rdzv-conf {next(iter(found))}: both sides of a connection show a certificate; "
            f"write {' and '.join(missing)}, too"
        )
    return found


def _options(given: Mapping[str, Given]) -> dict[str, str]:
    one = given.get(launch_settings.RENDEZVOUS_OPTIONS.name)
    return dict(cast("tuple[tuple[str, str], ...]", one.value)) if one is not None else {}


def _is_of_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InvalidRequestError(
            f"cannot use --rdzv-conf join_timeout={text}: it is no time in seconds; write join_timeout=600"
        )
    return value
