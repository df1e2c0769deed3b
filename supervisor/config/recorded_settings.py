"""Which settings of a job are recorded with it, and where was each of them set?

Those that somebody has written; all others have their defaults. Options of a rendezvous backend and commands for events
are left out: a password may be among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from supervisor.config import launch_settings
from supervisor.config.attribution_settings import EXPORT_URL
from supervisor.config.job_spec import JobSpec
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.redaction import HIDDEN, redacted_text, redacted_url
from supervisor.config.setting import Setting, value_at
from supervisor.config.value_origin import clip

VALUE, SOURCE = "set ", "from "  # the beginnings of the keys under which they are recorded
_WITHOUT_PATH = (
    launch_settings.WORKERS, launch_settings.NNODES, launch_settings.BACKEND, launch_settings.ENDPOINT,
)  # fmt: skip


def with_sources(spec: JobSpec, sources: Mapping[str, str]) -> JobSpec:
    """Returns the job with the places where its settings were written. `sources` is by name of the setting."""
    told = tuple((setting.name, sources[setting.name]) for setting in _recorded() if setting.name in sources)
    return msgspec.structs.replace(spec, sources=told)


def recorded_settings(spec: JobSpec) -> tuple[tuple[str, str], ...]:
    """Returns what is recorded: value and source of each setting, under keys of their own."""
    known = {setting.name: setting for setting in _recorded()}
    told: list[tuple[str, str]] = []
    for name, source in spec.sources:
        setting = known.get(name)
        if setting is None:
            continue
        value = setting.kind.show(value_at(spec, setting.path)) if setting.path else _value_of(spec, name)
        if setting.kind is EXPORT_URL:
            value, source = redacted_url(value), re.sub(r"(?<=://)\S+", HIDDEN, source)
        told += [(VALUE + name, clip(redacted_text(value))), (SOURCE + name, clip(redacted_text(source)))]
    return tuple(told)


def _recorded() -> tuple[Setting, ...]:
    return tuple(setting for setting in RUN_SETTINGS if setting.path or setting in _WITHOUT_PATH)


def _value_of(spec: JobSpec, name: str) -> str:
    nodes = spec.nodes
    if name == launch_settings.WORKERS.name:
        return str(spec.local_world_size)
    if nodes is None:
        return "one node"
    if name == launch_settings.NNODES.name:
        return f"{nodes.min_nodes}:{nodes.max_nodes}"
    return nodes.backend if name == launch_settings.BACKEND.name else f"{nodes.host}:{nodes.port}"
