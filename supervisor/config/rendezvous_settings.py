"""With which other nodes does a job run, where do they meet, and under which name does this one join?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import msgspec

from supervisor.config import launch_settings, launch_values, node_facts, static_rendezvous, values
from supervisor.config.fault_tolerance import SEGMENT
from supervisor.config.job_spec import EMBEDDED, JobSpec, Nodes
from supervisor.config.launch_values import NODES_MAX, split_endpoint
from supervisor.config.node_facts import NODE_NAME
from supervisor.config.submitted_nodes import is_of_this_machine
from supervisor.config.value_origin import Given
from supervisor.core.facts import RestartPolicyName
from supervisor.errors import HoldfastError, InvalidRequestError

DEFAULT_PORT = 29400  # torchrun's for --rdzv-endpoint
ETCD_PORT = 2379
JOIN_TIMEOUT_S = 600.0
TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")
LEADER_TTL_S = 2.0
FAN_OUT = 1024  # by default, all nodes of a job that has no more of them connect to the leader itself
RELAYED_FAN_OUT = 256  # the same of a larger job: each handshake less makes its start shorter
OWN_OPTIONS = frozenset({"token_file", "join_timeout", "leader_ttl", "nvlink_domain", "fan_out", *TLS_KEYS})
MEMBERS = "3"  # of the etcd that a job brings
LAST_PORT = 65_534  # of a member
NOT_WITH_MEMBERS = frozenset(
    {"protocol", "cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key", "user", "password_file",
     "etcd_prefix", "prefix"}
)  # fmt: skip

# What torchrun and the reference launcher know besides. None of it has anything to do here.
_NO_STORE = "the nodes meet without a TCPStore; remove it"
_BY_CONNECTION = "a lost node is found by its heartbeats, at a fixed rate; remove it"
_ONE_TIMEOUT = "write join_timeout=S to bound how long a node waits for the others"
IDLE_OPTIONS = {
    "is_host": "the node at --rdzv-endpoint leads, or with etcd an elected one; write that node's address there",
    "close_timeout": _ONE_TIMEOUT,
    "read_timeout": _ONE_TIMEOUT,
    "timeout": _ONE_TIMEOUT,
    "rank": "write --node-rank",
    "store_connect_wait_seconds": _ONE_TIMEOUT,
    "use_libuv": _NO_STORE,
    "store_type": _NO_STORE,
    "keep_alive_interval": _BY_CONNECTION,
    "keep_alive_max_attempt": _BY_CONNECTION,
    "heartbeat_timeout": _BY_CONNECTION,
    "segment_check_interval": "write --ft-segment N",
    "segment": "write --ft-segment N",
}
_READ_ELSEWHERE = frozenset({"last_call_timeout", "replacement_group_size"})
_KNOWN = OWN_OPTIONS | IDLE_OPTIONS.keys() | _READ_ELSEWHERE

_MEANT = {
    "embedded": "the first node that listens at the endpoint leads",
    "etcd": "the nodes elect their leader by etcd's API v3",
}


def read(given: Mapping[str, Given], cwd: str, environ: Mapping[str, str]) -> Nodes | None:
    """Returns None if the job runs on this node only. Raises InvalidRequestError or ConfigurationError."""
    asked = given.get(launch_settings.NNODES.name)
    low, high = cast("tuple[int, int]", asked.value) if asked is not None else (1, 1)
    if asked is None or high == 1:
        _check_alone(given)
        return None
    endpoint = given.get(launch_settings.ENDPOINT.name)
    is_named = static_rendezvous.is_named(given)
    if endpoint is None or not endpoint.value or not is_named:
        raise _missing(asked, endpoint, is_named=is_named)
    host, port = split_endpoint(str(endpoint.value))
    if port == 0:
        raise endpoint.problem("the nodes can't meet at port 0", "write the same port on each")
    options, backend = _options(given), backend_of(given)
    token_file = options.get("token_file", "")
    tls = _tls(options, cwd)
    port = (ETCD_PORT if backend == "etcd" else DEFAULT_PORT) if port is None else port
    has_members = _has_members(given, options, backend, high)
    if has_members and port > LAST_PORT:
        raise endpoint.problem("each member uses the next port, too", f"write a port up to {LAST_PORT}")
    if not token_file and not tls and (has_members or not is_of_this_machine(host)):
        token_file = shared_token(environ)
        if not token_file:
            raise endpoint.problem(
                "anybody who reaches that address could join the job, and there is no home for a secret",
                "write --rdzv-conf token_file=F, a secret that is the same on each, or tls_cert, tls_key and tls_ca",
            )
    name = given.get(launch_settings.LOCAL_ADDRESS.name)
    return Nodes(
        min_nodes=low,
        max_nodes=high,
        host=host,
        port=port,
        name=str(name.value) if name is not None and name.value else environ.get(NODE_NAME) or os.uname().nodename,
        token_file=os.path.join(cwd, token_file) if token_file else "",
        join_timeout_s=_seconds(options, "join_timeout", JOIN_TIMEOUT_S, least=0.001),
        backend=backend,
        backend_options=_backend_options(given, backend, options),
        fan_out=_fan_out(options, others=high - 1),
        leader_ttl_s=_seconds(options, "leader_ttl", LEADER_TTL_S, least=0.001),
        tls_cert=tls.get("tls_cert", ""),
        tls_key=tls.get("tls_key", ""),
        tls_ca=tls.get("tls_ca", ""),
    )


def shared_token(environ: Mapping[str, str]) -> str:
    """Returns the user's own token file, which `holdfast run` makes if it is missing; "" without a home."""
    home = environ.get("HOME", "")
    return os.path.join(home, ".config", "holdfast", "token") if os.path.isabs(home) else ""


def _missing(asked: Given, endpoint: Given | None, *, is_named: bool) -> HoldfastError:
    """Returns the error that says at once all that several nodes must be told."""
    has_endpoint = endpoint is not None and bool(endpoint.value)
    missing = [
        words
        for is_there, words in ((has_endpoint, "where they meet"), (is_named, "which job they share"))
        if not is_there
    ]
    meet = str(endpoint.value) if endpoint is not None and has_endpoint else f"HOST:{DEFAULT_PORT}"
    host = "" if has_endpoint else ", with the first node's address for HOST"
    error = asked.problem(f"several nodes must be told {' and '.join(missing)}", f"write on each{host}:")
    for line in (
        f"  holdfast run {asked.shown} --rdzv-endpoint {meet} --rdzv-id NAME …",
        "nodes that share no home folder also need a secret, made on one and copied to each:",
        "  (umask 077; head -c 32 /dev/urandom | base64 > job.token)",
        f"  holdfast run {asked.shown} --rdzv-endpoint {meet} --rdzv-id NAME --rdzv-conf token_file=job.token …",
    ):
        error.add_note(line)
    return error


def with_nodes(spec: JobSpec, given: Mapping[str, Given], environ: Mapping[str, str]) -> JobSpec:
    """Adds to the job what its nodes must agree on, and the facts of this node. Raises as `read` does."""
    nodes, options, segment = spec.nodes, _options(given), spec.rendezvous.segment
    least = 1 if nodes is None else nodes.min_nodes
    if segment is not None and least % segment:
        raise given[SEGMENT.name].problem(
            f"the job needs {least} node{'s' * (least != 1)}, which is not a multiple of it",
            "write --nnodes with one as its MIN",
        )
    if nodes is None:
        return spec
    facts = node_facts.read(given, environ, spec.entry, spec.command[0], domain=options.get("nvlink_domain", ""))
    group_size = _group_size(options, facts.replacement_group)
    counts_healthy = spec.restart.policy is RestartPolicyName.MIN_HEALTHY and nodes.max_nodes > nodes.min_nodes
    rendezvous = msgspec.structs.replace(
        spec.rendezvous,
        elastic=spec.rendezvous.elastic or counts_healthy,  # Spares would leave no node that may be lost.
        max_nodes=nodes.max_nodes,
        join_timeout_s=nodes.join_timeout_s,
        last_call_s=_seconds(options, "last_call_timeout", spec.rendezvous.last_call_s, least=0.0),
        replacement_group_size=group_size,
    )
    restart = msgspec.structs.replace(spec.restart, min_nodes=nodes.min_nodes)
    return msgspec.structs.replace(spec, restart=restart, rendezvous=rendezvous, facts=facts)


def warnings_of(spec: JobSpec, given: Mapping[str, Given]) -> list[str]:
    """Warns of what does nothing here, and of what means something else than in torchrun."""
    options, nodes = _options(given), spec.nodes
    if nodes is None:  # One node meets nobody, and torchrun's users write these options for it as well.
        unknown = [key for key in options if key not in _KNOWN]
        return [f"--rdzv-conf {unknown[0]} has no effect here: there is no such key"] if unknown else []
    warnings = [f"--rdzv-conf {key} has no effect here: {IDLE_OPTIONS[key]}" for key in options if key in IDLE_OPTIONS]
    run_id, backend = given.get(launch_settings.RUN_ID.name), given.get(launch_settings.BACKEND.name)
    if run_id is not None and spec.job_id == values.job_id_from(spec.run_id) != spec.run_id:
        warnings.append(f"{run_id.shown} is not a job id: holdfast's commands know this job as {spec.job_id}")
    if backend is not None and backend.value != nodes.backend:
        warnings.append(f"{backend.shown} means the backend {nodes.backend} of holdfast: {_MEANT[nodes.backend]}")
    return warnings


def _group_size(options: Mapping[str, str], group: str) -> int | None:
    text = options.get("replacement_group_size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= NODES_MAX):
        raise InvalidRequestError(
            f"cannot use --rdzv-conf replacement_group_size={text}: it is not a number of nodes from 1 to "
            f"{NODES_MAX}; write one such as 2"
        )
    if not group:
        raise InvalidRequestError(
            f"cannot use --rdzv-conf replacement_group_size={text}: this node belongs to no replacement group; set "
            f"{node_facts.REPLACEMENT_GROUP}"
        )
    return int(text[:9])


def _fan_out(options: Mapping[str, str], *, others: int) -> int:
    text = options.get("fan_out", str(FAN_OUT if others <= FAN_OUT else RELAYED_FAN_OUT))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= NODES_MAX):
        raise InvalidRequestError(
            f"cannot use --rdzv-conf fan_out={text}: it is not a number of nodes from 1 to {NODES_MAX}; "
            f"write fan_out={FAN_OUT}"
        )
    return int(text[:9])


def backend_of(given: Mapping[str, Given]) -> str:
    """Returns "embedded", "etcd", or the name of a backend that a package offers."""
    asked = given.get(launch_settings.BACKEND.name)
    name = str(asked.value) if asked is not None else EMBEDDED
    return launch_values.BACKENDS.get(name, name)


def _has_members(given: Mapping[str, Given], options: Mapping[str, str], backend: str, nodes_max: int) -> bool:
    """Returns whether the job brings its own etcd. Raises InvalidRequestError."""
    count = options.get("members")
    if count is None:
        return False
    conf = given[launch_settings.RENDEZVOUS_OPTIONS.name]
    if backend != "etcd":
        raise conf.problem("members are those of an etcd that the job brings", "write --rdzv-backend etcd, too")
    if count != MEMBERS:
        raise conf.problem(
            f"members={count} would not survive the loss of any one node, or is more than needed",
            f"write members={MEMBERS}",
        )
    if nodes_max < int(MEMBERS):
        raise conf.problem(
            f"{MEMBERS} members need as many nodes, and the job has at most {nodes_max}",
            f"write --nnodes {nodes_max}:{MEMBERS}, with a spare",
        )
    idle = sorted(set(options) & NOT_WITH_MEMBERS)
    if idle:
        raise conf.problem(f"{idle[0]} is for an etcd that runs already", f"leave {idle[0]} or members out")
    return True


def _backend_options(
    given: Mapping[str, Given], backend: str, options: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Returns options that are not ours. A backend checks them when it opens; the embedded one has none."""
    left = tuple((key, value) for key, value in options.items() if key not in _KNOWN)
    if left and backend == EMBEDDED:
        known = ", ".join(sorted(OWN_OPTIONS))
        raise given[launch_settings.RENDEZVOUS_OPTIONS.name].problem(
            f"there is no option {left[0][0]}", f"write one of {known}"
        )
    return left


def _check_alone(given: Mapping[str, Given]) -> None:
    rank = given.get(launch_settings.NODE_RANK.name)
    if rank is not None and rank.value != 0:
        raise rank.problem("the only node has rank 0", f"{rank.removal}, or write --nnodes")


def _tls(options: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Requires all three files, or none."""
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


def _seconds(options: Mapping[str, str], key: str, default_s: float, *, least: float) -> float:
    text = options.get(key, str(default_s))
    try:
        value = float(values.plain(text))
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise InvalidRequestError(
            f"cannot use --rdzv-conf {key}={text}: it is not a time in seconds; write {key}={default_s:g}"
        )
    return value
