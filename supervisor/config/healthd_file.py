"""What does the file of `holdfast healthd` say? The keys are those of other nvhcd services."""

from __future__ import annotations

import os
from typing import cast

import msgspec
import yaml

from supervisor.config import values
from supervisor.config.launch_settings import settings_by_key
from supervisor.config.setting import Group, Setting
from supervisor.config.yaml_source import read_keys, read_yaml

SOCKET_PATH_DEFAULT = "/var/run/nvhcd.sock"
TIMEOUT_S_DEFAULT = 120.0


class HealthdSettings(msgspec.Struct, frozen=True):
    """The settings of the service. The script is killed after `timeout_s`."""

    healthcheck_path: str
    socket_path: str = SOCKET_PATH_DEFAULT
    log_level: str = "info"
    timeout_s: float = TIMEOUT_S_DEFAULT


def _setting(key: str, kind: values.Kind, meaning: str, default: object = None) -> Setting:
    return Setting(f"--{key.replace('_', '-')}", kind, meaning, Group.RUN, default=default, keys=(key,))


_SCRIPT = _setting("healthcheck_path", values.text("PATH", empty=False), "program that checks the node")
_SOCKET = _setting("socket_path", values.text("PATH", empty=False), "socket to serve", SOCKET_PATH_DEFAULT)
_LEVEL = _setting("log_level", values.choice("debug", "info", "warn", "warning", "error"), "what is logged", "info")
_TIMEOUT = _setting("timeout", values.seconds(), "how long the program may take", TIMEOUT_S_DEFAULT)
SETTINGS = (_SCRIPT, _SOCKET, _LEVEL, _TIMEOUT)


def read_healthd_file(path: str) -> HealthdSettings:
    """Reads the file. Raises ConfigurationError with file, line and remedy."""
    file = read_yaml(path)
    root = file.root
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise file.error(root, "its top is not a mapping", "write KEY: VALUE lines")
    given = read_keys(file, root, settings_by_key(SETTINGS))
    script = given.get(_SCRIPT.name)
    if script is None:
        raise file.error(root, "healthcheck_path is missing", "write healthcheck_path: PATH of the program to run")
    if not os.path.isabs(str(script.value)):
        raise script.problem("the service may start in any folder", "write an absolute path")

    def value(setting: Setting) -> object:
        one = given.get(setting.name)
        return setting.default if one is None else one.value

    return HealthdSettings(
        healthcheck_path=str(script.value),
        socket_path=os.path.abspath(str(value(_SOCKET))),
        log_level=str(value(_LEVEL)),
        timeout_s=cast("float", value(_TIMEOUT)),
    )
