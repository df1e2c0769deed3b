"""Writes docs/configuration.md from the tables of the parsers in supervisor/config, so it cannot be wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.config.daemon_settings import DAEMON_SETTINGS
from supervisor.config.environment import GPUS_PER_NUMA, GPUS_PER_NUMA_REFERENCE, LOG_LINE_PREFIX, NOT_READ
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.node_facts import CROSS_RANK, FROM_NAME, GROUP_RANK, SLURM_RANK, TOPOLOGY
from supervisor.config.setting import Group, Setting, Status
from supervisor.config.values import SECONDS_MAX, show_number

_INTRODUCTION = f"""\
# Configuration

<!-- Written by docs/make_configuration.py from supervisor/config. Do not edit: run `make docs`. -->

If a value is given in several places, the last of these wins: default, YAML file, environment, command line.
Timeouts that the ranks calculate together at run time override all of them.

- Flags may be written with `-` or `_`, and with `=` or a space before the value. If a flag is given twice, the
  last value counts. The first word that is not a flag is the script; everything after it belongs to the script.
  In these arguments `${{local_rank}}` is replaced by each worker's local rank and `$$` by `$`, as torchrun does.
- Each flag of `holdfast run` has a variable `PET_<NAME>`; an empty variable counts as not set.
- Durations are seconds, as plain numbers without a unit, at most {show_number(SECONDS_MAX)} (a week). Where a limit
  is optional, `none`, `null` or an empty value mean no limit.
- Booleans are `true`, `1`, `yes`, `on` or `false`, `0`, `no`, `off`, in any case.
- Signals are names in any case, with or without `SIG`, or numbers.
- Sections are `NAME:SECONDS,NAME:null` in a flag, and a mapping in a file.
- The older `--ft-param-<name>` means `--ft-<name>`; all old names work, with one warning.
- An error on the command line ends with exit code 2; an error in a file or a variable ends with 78.
- A torchrun flag or a key of the reference launcher that has no effect here causes a warning. A flag that is not
  supported yet is an error, unless its value asks for nothing. `--help-all` lists all flags, `--help` the most used
  ones.

## The YAML file

`--ft-cfg-path FILE` reads the mapping `fault_tolerance`, at the top of the file or nested anywhere in it; there must be
exactly one. The rest of the file is not checked. In the section, an unknown key, a wrong type, a quoted number and a
key given twice are errors that name the file and the line. `null` means not set; where the table
has `SECONDS|none`, it means no limit. Anchors, aliases and `<<` work; tags do not.

```yaml
fault_tolerance:
  rank_heartbeat_timeout: 600
  rank_section_timeouts:
    setup: 900
    step: 60
    checkpointing: null
  max_no_progress_cycles: 3
```

`holdfast run --dry-run` prints the job without running it, as YAML that `--ft-cfg-path` can read: its command, nodes,
store and supervisor, the variables of each rank, and its whole section. A comment after each value names its source:
a flag, a variable, a file with its line, or the default.
"""

_VARIABLES = (
    (GPUS_PER_NUMA, "number of GPUs of a NUMA node: numactl binds each worker to node local_rank // this number"),
    (GPUS_PER_NUMA_REFERENCE, f"the reference launcher's name for {GPUS_PER_NUMA}"),
    (LOG_LINE_PREFIX, "prefix of each line under --tee; ${role_name}, ${rank} and ${local_rank} are filled in"),
    (
        f"{FROM_NAME}, {CROSS_RANK}, {TOPOLOGY}, {SLURM_RANK}, {GROUP_RANK}",
        "this node's place in the order of the job's nodes; see [which node gets which rank]"
        "(reference/many-nodes.md#which-node-gets-which-rank)",
    ),
    ("OMP_NUM_THREADS", "set to 1 for the workers if it is not set and there is more than one worker"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "set to 1 for the workers if it is not set"),
    ("CUDA_VISIBLE_DEVICES", "the [job's GPUs](gpu.md), which are counted, checked and waited for"),
    ("CUDA_DEVICE_ORDER", "must be PCI_BUS_ID for --numa-binding if GPUs differ and are named by numbers"),
)


def configuration_page() -> str:
    """Returns the whole page."""
    parts = [_INTRODUCTION, "\n## `holdfast run`\n"]
    for group in Group:
        members = [setting for setting in RUN_SETTINGS if setting.group is group]
        parts.append(f"\n### {group}\n\n")
        parts.append(_short_table(members) if group in (Group.INERT, Group.LATER) else _table(members))
    parts.append("\n### Other variables\n\n| variable | meaning |\n|---|---|\n")
    parts += [f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in _VARIABLES]
    parts.append(
        "\nThe following variables of the reference launcher and torchrun are not read, and a warning says so:\n\n"
    )
    parts.append("| variable | instead |\n|---|---|\n")
    parts += [f"| `{name}` | {_cell(why)} |\n" for name, why in NOT_READ.items()]
    parts.append(
        "\n## `holdfast daemon`\n\nThe keys are at the top level of the file that `--config` names. A "
        "`fault_tolerance` section in that file is checked but otherwise ignored; it is for `holdfast run`.\n\n"
    )
    parts.append(_table([setting for setting in DAEMON_SETTINGS if setting.status is Status.WORKS]))
    if later := [setting for setting in DAEMON_SETTINGS if setting.status is Status.LATER]:
        parts.append("\nNot supported yet:\n\n" + _short_table(later))
    return "".join(parts)


def _table(members: Iterable[Setting]) -> str:
    rows = ["| flag | key in the file | variable | default | unit | meaning |\n|---|---|---|---|---|---|\n"]
    for setting in members:
        cells = (_flags(setting), _codes(setting.keys), _codes(setting.variables), _default(setting))
        rows.append(f"| {' | '.join(cells)} | {setting.kind.unit} | {_cell(setting.meaning)} |\n")
    return "".join(rows)


def _short_table(members: Iterable[Setting]) -> str:
    rows = ["| flag | key in the file | variable | asks for nothing | unit | why |\n|---|---|---|---|---|---|\n"]
    for setting in members:
        why = setting.meaning + (" not supported yet" if setting.status is Status.LATER else "")
        values = [
            setting.default_text(),
            *(setting.kind.show(value) for value in setting.harmless + setting.tolerated if value),
        ]
        nothing = "" if setting.status is Status.INERT else _codes(value for value in values if value)
        cells = (_flags(setting), _codes(setting.keys), _codes(setting.variables), nothing, setting.kind.unit)
        rows.append(f"| {' | '.join(cells)} | {_cell(why)} |\n")
    return "".join(rows)


def _flags(setting: Setting) -> str:
    value = "" if setting.is_switch else f" {setting.kind.metavar}"
    main = f"{setting.short}, {setting.flag}{value}" if setting.short else setting.flag + value
    other = f" (also {_codes(setting.other_flags)})" if setting.other_flags else ""
    old = f" (old: {_codes(setting.old_flags)})" if setting.old_flags else ""
    return f"`{_cell(main)}`{other}{old}"


def _default(setting: Setting) -> str:
    text = setting.default_text()
    return _cell(text) if setting.default_words else _codes([text] if text else [])


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{_cell(word)}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(configuration_page())
