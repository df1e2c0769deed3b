"""What would be run? The answer of --dry-run, and a job's settings as a fault_tolerance section."""

from __future__ import annotations

import json
import shlex
from typing import cast

from supervisor.config.job_spec import Entry, JobSpec
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.numa import numactl_prefix
from supervisor.config.resolve import RunRequest
from supervisor.config.setting import Setting, Status, value_at
from supervisor.config.values import SectionLimits, Shape, show_number


def plan_text(request: RunRequest) -> str:
    """The plan as YAML that `--ft-cfg-path` reads back. No environment values."""
    spec = request.spec
    interpreter = {Entry.SCRIPT: ["python"], Entry.MODULE: ["python", "-m"], Entry.COMMAND: []}[spec.entry]
    if spec.python and interpreter:
        interpreter[0] = spec.python
    port = f"port {spec.master_port}" if spec.master_port else "a fresh port each cycle"
    host = "the store host" if spec.agent_store else "rank 0"
    lines = [
        f"job_id: {_quoted(spec.job_id)}",
        f"command: {_quoted(shlex.join([*interpreter, *spec.command]))}",
        f"directory: {_quoted(spec.cwd)}",
        f"workers: {spec.local_world_size}",
        f"spawn_method: {spec.spawn_method.value}",
        f"store: {_quoted(f'{spec.master_addr}, {port}, served by {host}')}",
        f"logs: {_quoted(spec.log_dir or 'the default place')}",
    ]
    if spec.gpus_per_numa is not None:
        lines.append(f"binding_of_local_rank_0: {_quoted(shlex.join(numactl_prefix(spec, 0)))}")
    if request.config_file:
        lines.append(f"read_from: {_quoted(request.config_file)}")
    return "\n".join(lines) + "\n" + fault_tolerance_yaml(spec)


def fault_tolerance_yaml(spec: JobSpec) -> str:
    """Every setting of `spec` that the section has a key for, as YAML."""
    lines = [
        f"  {setting.keys[0]}:{_yaml_value(setting, value_at(spec, setting.path))}"
        for setting in RUN_SETTINGS
        if setting.keys and setting.path and setting.status is Status.WORKS
    ]
    return "\n".join(["fault_tolerance:", *lines]) + "\n"


def _yaml_value(setting: Setting, value: object) -> str:
    if setting.kind.shape is Shape.MAP:
        pairs = cast("SectionLimits", value)
        nested = "".join(f"\n    {_quoted(name)}: {_number(limit)}" for name, limit in pairs)
        return nested or " {}"
    if value is None:
        return " null"
    text = setting.kind.show(value)
    return f" {text if setting.kind.shape in (Shape.NUMBER, Shape.BOOLEAN) else _quoted(text)}"


def _number(value: float | None) -> str:
    return "null" if value is None else show_number(value)


def _quoted(text: str) -> str:
    """A YAML double-quoted scalar: JSON's strings are among them, with other escapes beyond 16 bits."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
