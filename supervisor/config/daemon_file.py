"""What does the file of `holdfast daemon` say?"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from supervisor.config.launch_settings import settings_by_key
from supervisor.config.setting import Setting
from supervisor.config.value_origin import Given
from supervisor.config.yaml_source import SECTION, YamlFile, read_keys, read_yaml


def read_daemon_file(path: str, known: Mapping[str, Setting]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Returns the supervisor's own keys at the file's top, and warnings. Raises ConfigurationError.

    One file may serve the daemon and the jobs: a fault_tolerance section is checked here too, and has no effect here.
    """
    file = read_yaml(path)
    if file.root is None:
        return {}, ()
    if not isinstance(file.root, yaml.MappingNode):
        raise file.error(file.root, "its top is not a mapping", "write KEY: VALUE lines")
    warnings: list[str] = []
    own: list[tuple[yaml.Node, yaml.Node]] = []
    for key, value in file.root.value:
        if key.value == SECTION:
            warnings.append(_check_section(file, key, value))
        else:
            own.append((key, value))
    top = yaml.MappingNode(file.root.tag, own, file.root.start_mark, file.root.end_mark)
    return read_keys(file, top, known), tuple(warnings)


def _check_section(file: YamlFile, key: yaml.Node, value: yaml.Node) -> str:
    if isinstance(value, yaml.MappingNode):
        read_keys(file, value, settings_by_key())
    elif value.tag != "tag:yaml.org,2002:null":
        raise file.error(value, f"{SECTION} is not a mapping", "write its keys below it, indented")
    return f"{file.place(key)}: {SECTION} has no effect on the daemon: give the file to holdfast run --ft-cfg-path"
