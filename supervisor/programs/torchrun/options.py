"""What do torchrun's --rdzv-endpoint and --rdzv-conf mean for this backend?"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import msgspec

from supervisor.config.launch_values import split_endpoint
from supervisor.config.rendezvous_settings import DEFAULT_PORT, TLS_KEYS
from supervisor.config.values import ValueProblem
from supervisor.core.elastic.elastic_messages import ElasticRules
from supervisor.edges.peers.codec.cluster_stream_bounds import NAME_CHARACTERS_MAX
from supervisor.edges.peers.elastic.elastic_peers import ElasticMeeting
from supervisor.edges.peers.handshake import job_secrets
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import TlsFiles
from supervisor.edges.peers.transport.own_address import is_meant_as_loopback
from supervisor.errors import ConfigurationError
from supervisor.ports.job_requests import RendezvousRequest

# In seconds, with torch's defaults.
_SECONDS = {"join_timeout": 600.0, "last_call_timeout": 30.0, "close_timeout": 30.0, "read_timeout": 60.0}
_OTHERS = ("is_host", "token_file", *TLS_KEYS)
# Options of other backends. Here the stream's own heartbeat detects losses, and the store is torch's TCPStore.
_WITHOUT_EFFECT = ("heartbeat", "keep_alive_interval", "keep_alive_max_attempt", "store_type")
_TORCHRUNS_OWN = ("timeout",)  # torchrun adds it for every backend
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")

_log = logging.getLogger("holdfast.torchrun")


class AgentOptions(msgspec.Struct, frozen=True):
    meeting: ElasticMeeting
    rules: ElasticRules
    local_address: str  # "": the address from which this host reaches the endpoint
    order: int  # this node's place according to the scheduler; -1: none
    close_timeout_s: float
    read_timeout_s: float
    request: RendezvousRequest | None  # for a supervisor of this node, if one runs; None: it can't lead


class Given(msgspec.Struct, frozen=True):
    """What torchrun got, without torch's types."""

    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_address: str
    options: Mapping[str, object]


def read(given: Given, environment: Mapping[str, str], *, host_name: str, pid: int) -> AgentOptions:
    """Reads the options. Raises ValueError, as torch does for a user's mistake."""
    _check_keys(given.options)
    seconds = {key: _seconds(key, given.options.get(key, default)) for key, default in _SECONDS.items()}
    endpoint, is_open = _endpoint(given)
    leads = _leads(given)
    token_file = str(given.options.get("token_file", ""))
    tls_files = _tls_files(given)
    if not token_file and tls_files is None and (is_open or leads):
        raise ValueError(
            f"cannot meet at {endpoint} without a secret: anybody who reaches that address could join the job; write "
            "--rdzv-conf token_file=F, a file that is the same on each node and readable by its owner only, or "
            "tls_cert, tls_key and tls_ca"
        )
    if not 1 <= len(given.run_id) <= NAME_CHARACTERS_MAX:
        raise ValueError(
            f"cannot use --rdzv-id of {len(given.run_id)} characters; write one of 1 to {NAME_CHARACTERS_MAX}"
        )
    try:
        tls = job_secrets.read(token_file, tls_files)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    node = f"{given.local_address or host_name}/{pid}"
    return AgentOptions(
        meeting=ElasticMeeting(given.run_id, node, endpoint, leads, tls),
        rules=ElasticRules(given.min_nodes, given.max_nodes, seconds["join_timeout"], seconds["last_call_timeout"]),
        local_address=given.local_address,
        order=_order(environment),
        close_timeout_s=seconds["close_timeout"],
        read_timeout_s=seconds["read_timeout"],
        request=_request(given.run_id, endpoint, leads, token_file, tls_files),
    )


def _check_keys(options: Mapping[str, object]) -> None:
    known = sorted((*_SECONDS, *_OTHERS))
    for key in options:
        if key == "heartbeat_timeout":
            raise ValueError(
                f"cannot use --rdzv-conf {key}: after which silence an agent is lost can't be set with "
                "--rdzv-backend=holdfast; remove it"
            )
        if key in _WITHOUT_EFFECT:
            _log.warning("holdfast: --rdzv-conf %s has no effect with --rdzv-backend=holdfast", key)
        elif key not in known and key not in _TORCHRUNS_OWN:
            raise ValueError(f"cannot use --rdzv-conf {key}: there is no such key; there are {', '.join(known)}")


def _seconds(key: str, value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if 0 < seconds < float("inf") or (seconds == 0 and key == "last_call_timeout"):
        return seconds
    raise ValueError(
        f"cannot use --rdzv-conf {key}={value}: it is not a time in seconds; write {key}={_SECONDS[key]:g}"
    )


def _request(
    run_id: str, endpoint: PeerAddress, leads: bool | None, token_file: str, tls_files: TlsFiles | None
) -> RendezvousRequest | None:
    if leads is False or not endpoint.port:
        return None
    files = TlsFiles("", "", "") if tls_files is None else tls_files
    paths = (token_file, files.certificate, files.key, files.authority)
    absolute = [os.path.abspath(path) if path else "" for path in paths]
    return RendezvousRequest(run_id, endpoint.host, endpoint.port, bool(leads), *absolute)


def _tls_files(given: Given) -> TlsFiles | None:
    """Returns all three files, or None."""
    found = [str(given.options.get(key, "")) for key in TLS_KEYS]
    missing = [key for key, path in zip(TLS_KEYS, found, strict=True) if not path]
    if missing and len(missing) < len(TLS_KEYS):
        raise ValueError(
            "cannot use TLS with a part of its files: both sides of a connection show a certificate; write --rdzv-conf "
            f"{' and '.join(missing)}, too"
        )
    return None if missing else TlsFiles(*found)


def _endpoint(given: Given) -> tuple[PeerAddress, bool]:
    """Returns where to meet, and whether others can reach it. A single node needs no place that others know."""
    if not given.endpoint:
        if given.max_nodes == 1:
            return PeerAddress("127.0.0.1", 0), False
        raise ValueError("cannot tell where the nodes meet; write --rdzv-endpoint HOST:PORT, the same on each")
    try:
        host, port = split_endpoint(given.endpoint)
    except ValueProblem as problem:
        raise ValueError(f"cannot use --rdzv-endpoint {given.endpoint}: {problem}; {problem.remedy}") from problem
    if not host or (port == 0 and given.max_nodes > 1):
        raise ValueError(f"cannot use --rdzv-endpoint {given.endpoint}: the nodes can't meet there; write HOST:PORT")
    return PeerAddress(host, DEFAULT_PORT if port is None else port), not is_meant_as_loopback(host)


def _leads(given: Given) -> bool | None:
    value = given.options.get("is_host")
    word = str(value).lower()
    if value is None or word in _YES or word in _NO:
        return None if value is None else word in _YES
    raise ValueError(
        f"cannot use --rdzv-conf is_host={value}: it is neither true nor false; write is_host=1 or is_host=0"
    )


def _order(environment: Mapping[str, str]) -> int:
    for name in ("SLURM_PROCID", "GROUP_RANK"):
        if (word := environment.get(name, "")).isdecimal() and len(word) < 10:
            return int(word)
    return -1
