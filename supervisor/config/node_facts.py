"""Which place has this node among the nodes of its job, according to the scheduler that started it?

Read from the environment of the command that submits the job, and carried with the job from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from supervisor.config import launch_settings
from supervisor.config.job_spec import Entry
from supervisor.config.value_origin import Given, clip
from supervisor.core.facts import NodeFacts
from supervisor.errors import ConfigurationError

SLURM_RANK, GROUP_RANK = "SLURM_PROCID", "GROUP_RANK"
CROSS_RANK = "CROSS_SLURM_PROCID"  # of nodes that several Slurm jobs have brought together
TOPOLOGY, TOPOLOGY_PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
# Of Slurm's topology/block. Numbers stand at the ends alone: two nodes of a block can't have the same by chance.
IN_BLOCK = re.compile(r"[^0-9.]*([0-9]{1,8})\.[^0-9.]*([0-9]{1,8})")
BLOCK_NODES, BLOCK_NODES_DEFAULT = "SLURM_TOPOLOGY_NODES_PER_BLOCK", 10**10
FROM_NAME, NODE_NAME = "NVRX_INFRA_RANK_FROM_NODENAME", "SLURMD_NODENAME"
YES, NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
ARRAY_TASK = "SLURM_ARRAY_TASK_ID"
SLURM_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
REPLACEMENT_GROUP = "NVRX_REPLACEMENT_GROUP_ID"
RANK_MAX = 2**31 - 1
NAME_DIGITS_MAX = 18  # a rank travels as 64 bits


def read(
    given: Mapping[str, Given], environ: Mapping[str, str], entry: Entry, program: str, *, domain: str = ""
) -> NodeFacts:
    """Reads the facts of this node. Raises ConfigurationError."""
    rank, source = _rank(given, environ)
    return NodeFacts(
        infrastructure_rank=rank,
        rank_source=source,
        domain=domain,
        replacement_group=environ.get(REPLACEMENT_GROUP) or environ.get(ARRAY_TASK) or "",
        program=f"-m {program}" if entry is Entry.MODULE else os.path.basename(program),
    )


def _rank(given: Mapping[str, Given], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Follows the documented order; torchrun's rank of the node comes last, because torchrun often ignores it."""
    if _is_on(environ, FROM_NAME):
        return _rank_in_name(environ), f"{FROM_NAME} and {NODE_NAME}"
    if environ.get(CROSS_RANK):
        return _number(environ, CROSS_RANK), CROSS_RANK
    if (in_block := _rank_in_block(environ)) is not None:
        return in_block, TOPOLOGY
    if environ.get(SLURM_RANK):
        rank = _number(environ, SLURM_RANK)
        nodes = next((_number(environ, name) for name in SLURM_NODES if environ.get(name)), 0)
        if environ.get(ARRAY_TASK) and nodes:  # The tasks of an array are nodes of one job, or never meet.
            return _number(environ, ARRAY_TASK) * nodes + rank, f"{ARRAY_TASK} and {SLURM_RANK}"
        return rank, SLURM_RANK
    if environ.get(GROUP_RANK):
        return _number(environ, GROUP_RANK), GROUP_RANK
    flag = given.get(launch_settings.NODE_RANK.name)
    if flag is not None and isinstance(flag.value, int):
        return flag.value, launch_settings.NODE_RANK.flag
    return None, ""


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    word = environ.get(name, "").strip().lower()
    if word in YES or word in NO:
        return word in YES
    raise ConfigurationError(f"cannot use {name}={clip(word)}: it is neither true nor false; write {name}=1")


def _rank_in_name(environ: Mapping[str, str]) -> int:
    """Returns all digits of the node's name: nvl72134-T01 has 7213401."""
    name = environ.get(NODE_NAME, "")
    digits = "".join(letter for letter in name if letter.isascii() and letter.isdigit())
    if 0 < len(digits) <= NAME_DIGITS_MAX:
        return int(digits)
    why = (
        "it is not set" if not name else f"it has more than {NAME_DIGITS_MAX} digits" if digits else "it has no digits"
    )
    shown = f"{NODE_NAME}={clip(name)}" if name else NODE_NAME
    raise ConfigurationError(f"cannot take the node's rank from {shown}: {why}; unset {FROM_NAME}")


def _rank_in_block(environ: Mapping[str, str]) -> int | None:
    """Keeps nodes of one network block together. None: Slurm knows no blocks, or names them without numbers."""
    named = IN_BLOCK.fullmatch(environ.get(TOPOLOGY, ""))
    if named is None or environ.get(TOPOLOGY_PATTERN, "").strip() != "block.node":
        return None
    nodes = _number(environ, BLOCK_NODES) if environ.get(BLOCK_NODES) else BLOCK_NODES_DEFAULT
    block, node = int(named[1]), int(named[2])
    return block * nodes + node if node < nodes else None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if text.isascii() and text.isdigit() and int(text[:12]) <= RANK_MAX:
        return int(text[:12])
    raise ConfigurationError(
        f"cannot use {name}={clip(text)}: it is not a whole number from 0 to {RANK_MAX}; unset {name} where no "
        "scheduler sets it"
    )
