"""What does a YAML file contain, and on which line?

Nodes are composed, never constructed: no tag makes an object, and every message can name the line.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, cast

import msgspec
import yaml

from supervisor.config.setting import Setting
from supervisor.config.value_origin import Given, clip, nearest, read
from supervisor.config.values import SECTIONS, SectionLimits, Shape, ValueProblem, add_section, parse_section_limit
from supervisor.errors import ConfigurationError

FILE_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 100
MERGES_MAX = 32  # mappings merged into one another
SECTION = "fault_tolerance"
ANYBODYS = frozenset({"log_level", "preload", "segment"})  # of our keys, words that other programs' files may have, too

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_STANDARD = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "map", "seq", "merge", "timestamp", "value")
)


class YamlFile(msgspec.Struct, frozen=True):
    """One file, composed."""

    path: str
    root: yaml.Node | None  # None: the file is empty

    def error(self, node: yaml.Node | None, why: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"cannot use {self.place(node)}: {why}; {remedy}")

    def place(self, node: yaml.Node | None) -> str:
        return f"{self.path}, line {_line(node)}" if node is not None else self.path


def read_yaml(path: str) -> YamlFile:
    """Reads and composes `path`. Raises ConfigurationError."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot read {path}: {reason}; check the path and its permissions") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(f"cannot read {path}: it is larger than {FILE_BYTES_MAX} bytes; check the path")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"cannot read {path}, line {line}: it is not UTF-8; save the file as UTF-8") from error
    try:
        _check_depth(path, text)
        return YamlFile(path, yaml.compose(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark is not None else path
        parts = (getattr(error, name, None) for name in ("context", "problem", "reason"))
        why = ", ".join(part for part in parts if part) or "it is not YAML"
        if mark is not None and _is_indented_by_tab(text, mark.line):
            raise ConfigurationError(f"cannot read {place}: a tab indents it; replace the tab by spaces") from error
        raise ConfigurationError(f"cannot read {place}: {why}; correct the YAML") from error


def _is_indented_by_tab(text: str, number: int) -> bool:
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    return "\t" in line[: len(line) - len(line.lstrip())]


def _check_depth(path: str, text: str) -> None:
    """Limits the depth: events are read without recursion, but composing recurses in C and could overflow its stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                place = f"{path}, line {cast('yaml.Mark', event.start_mark).line + 1}"
                raise ConfigurationError(
                    f"cannot read {place}: it is nested deeper than {DEPTH_MAX} levels; check the path"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def fault_tolerance_section(file: YamlFile, known: Container[str]) -> yaml.MappingNode:
    """Returns the one `fault_tolerance` mapping, at the top or nested anywhere.

    `known` are its keys: one that stands beside it has lost its indentation. Raises ConfigurationError for that, for
    an empty section and for none.
    """
    found: list[tuple[yaml.Node, yaml.Node]] = []
    beside: list[yaml.ScalarNode] = []
    similar: list[yaml.Node] = []
    for mapping in _mappings(file):
        keys = [key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)]
        for key, value in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value == SECTION:
                found.append((key, value))
                beside = [other for other in keys if other.value in known and other.value not in ANYBODYS]
            elif nearest(str(key.value), [SECTION]):
                similar.append(key)
    if not found:
        if similar:
            raise file.error(similar[0], f"no section is called {clip(str(similar[0].value))}", f"write {SECTION}")
        raise file.error(None, f"it has no {SECTION} section", f"put the keys under '{SECTION}:'")
    if len(found) > 1:
        first, second = _line(found[0][0]), found[1][0]
        raise file.error(second, f"it is a second {SECTION} section (the first is on line {first})", "keep one of them")
    key, value = found[0]
    if beside:
        raise file.error(
            beside[0],
            f"{clip(str(beside[0].value))} stands beside {SECTION} (line {_line(key)}), where it has no effect",
            f"indent it by two spaces more than {SECTION}, to stand below it",
        )
    if isinstance(value, yaml.MappingNode) and value.value:
        return value
    if value.tag == _NULL or isinstance(value, yaml.MappingNode):
        raise file.error(key, f"{SECTION} has no keys", "write its keys below it, indented, or do not name the file")
    raise file.error(value, f"{SECTION} is not a mapping", "write its keys below it, indented")


def read_keys(file: YamlFile, section: yaml.MappingNode | None, known: Mapping[str, Setting]) -> dict[str, Given]:
    """Returns the values of a mapping's keys, by the settings' names. Null is left out if it is not a value."""
    given: dict[str, Given] = {}
    if section is None:
        return given
    for key, value in pairs_of(file, section):
        name = str(key.value)
        setting = known.get(name)
        if setting is None:
            meant = nearest(name, known)
            raise file.error(key, f"there is no key {clip(name)}", f"write {meant}" if meant else "remove it")
        if setting.name in given:
            raise file.error(key, f"{clip(name)} is given twice under two names", "keep one of them")
        one = _read_value(file, setting, name, value)
        if one is not None:
            given[setting.name] = one
    return given


def pairs_of(file: YamlFile, mapping: yaml.MappingNode, depth: int = 0) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Returns keys and values of `mapping`, merged ones (<<) last, overridden by its own. Duplicates are an error."""
    own: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
    merged: list[yaml.Node] = []
    for key, value in mapping.value:
        if key.tag == _MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise file.error(key, "a key is not a word", "write keys as plain words")
        if key.value in own:
            first = _line(own[key.value][0])
            raise file.error(key, f"{clip(key.value)} is given twice (first on line {first})", "keep one of them")
        own[key.value] = (key, value)
    for other in merged:
        if not isinstance(other, yaml.MappingNode) or depth == MERGES_MAX:
            raise file.error(other, "<< names no mapping, or itself", "merge other mappings only")
        for key, value in pairs_of(file, other, depth + 1):
            own.setdefault(key.value, (key, value))
    return list(own.values())


def _read_value(file: YamlFile, setting: Setting, name: str, node: yaml.Node) -> Given | None:
    place = file.place(node)
    if node.tag not in _STANDARD:
        raise file.error(node, f"{name} has the tag {clip(node.tag)}", "write a plain value")
    if node.tag == _NULL and not setting.kind.none_is_value:
        return None
    if setting.kind is SECTIONS:
        limits = _read_sections(file, name, node)
        shown = f"{place} ({name})"
        return Given(setting, limits, shown, f"remove {name}")
    if not isinstance(node, yaml.ScalarNode):
        raise file.error(node, f"{name} must be {setting.kind.shape.value}", f"write {name}: {setting.kind.metavar}")
    text = "none" if node.tag == _NULL else node.value
    _check_shape(file, setting, name, node)
    return read(setting, text, shown=f"{place} ({name}: {clip(text)})", removal=f"remove {name}")


def _check_shape(file: YamlFile, setting: Setting, name: str, node: yaml.ScalarNode) -> None:
    """Checks the shape: quotes make a value text, and text is not a number nor a number text."""
    shape, quoted = setting.kind.shape, node.style in ("'", '"', "|", ">")
    if shape in (Shape.NUMBER, Shape.BOOLEAN) and quoted:
        raise file.error(node, f"{name} must be {shape.value}, and quotes make it text", "remove the quotes")
    if shape is Shape.NUMBER and ":" in node.value:
        raise file.error(node, f"{name} must be a number", "write seconds as a plain number")
    if shape is Shape.TEXT and not quoted and node.tag.rpartition(":")[2] in ("int", "float", "bool"):
        try:
            setting.kind.parse(node.value)
        except ValueProblem:
            return  # its own complaint is the better one
        raise file.error(node, f"{name} must be {shape.value}", f"quote it: '{node.value}'")


def _read_sections(file: YamlFile, name: str, node: yaml.Node) -> SectionLimits:
    if node.tag == _NULL:
        return ()
    if not isinstance(node, yaml.MappingNode):
        raise file.error(node, f"{name} must be {Shape.MAP.value}", "write one NAME: SECONDS a line below it, indented")
    limits: dict[str, float | None] = {}
    for key, value in pairs_of(file, node):
        if not isinstance(value, yaml.ScalarNode) or value.tag not in _STANDARD:
            raise file.error(value, f"section '{key.value}' must have a number of seconds", "write seconds, or null")
        if value.style in ("'", '"', "|", ">") or ":" in value.value:
            raise file.error(value, f"section '{key.value}' must have a number of seconds", "write a plain number")
        try:
            limit = parse_section_limit(key.value, "none" if value.tag == _NULL else value.value)
            add_section(limits, key.value, limit)
        except ValueProblem as trouble:
            raise file.error(value, f"{name}: {trouble.why}", trouble.remedy) from None
    return tuple(limits.items())


def _mappings(file: YamlFile) -> Iterator[yaml.MappingNode]:
    """Yields every mapping, depth first. A node that aliases repeat is seen once."""
    waiting: list[yaml.Node] = [file.root] if file.root is not None else []
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            yield node
            waiting += [value for _, value in reversed(node.value)]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
