"""What does Slurm know of a job's nodes that users need not write: how many there are, and where they meet?

A step of srun with several nodes and one task on each is one job, unless flags, variables or the file say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from supervisor.config import launch_settings, rendezvous_settings, static_rendezvous
from supervisor.config.setting import Setting
from supervisor.config.value_origin import Given, clip, read

STEP_NODES, STEP_TASKS, NODE_LIST = "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"
PER_NODE, TASK = "SLURM_NTASKS_PER_NODE", "SLURM_PROCID"
JOB, STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
PORT_FIRST, PORTS = 24_000, 5_000  # below the ports that the kernel gives away, and torchrun's own


def given_by(environ: Mapping[str, str], known: Mapping[str, Given]) -> dict[str, Given]:
    """Returns what the step says of the job where `known` says nothing; nothing outside of such a step."""
    nodes = _count(environ, STEP_NODES)
    standalone = known.get(launch_settings.STANDALONE.name)
    if nodes < 2 or nodes != _count(environ, STEP_TASKS) or (standalone is not None and standalone.value):
        return {}
    asked = known.get(launch_settings.NNODES.name)
    if asked is not None and cast("tuple[int, int]", asked.value)[1] == 1:
        return {}
    job, step, host = environ.get(JOB, ""), environ.get(STEP, ""), first_node(environ.get(NODE_LIST, ""))
    if not (job.isascii() and job.isdigit() and step.isascii() and step.isdigit() and host):
        return {}
    found = [_from(environ, launch_settings.NNODES, STEP_NODES, str(nodes))]
    if not static_rendezvous.is_named(known):
        found.append(_from(environ, launch_settings.JOB_ID, JOB, f"slurm-{job}-{step}"))
    if rendezvous_settings.backend_of(known) == rendezvous_settings.EMBEDDED:
        port = PORT_FIRST + (int(job[-12:]) * 31 + int(step[-12:])) % PORTS
        found.append(_from(environ, launch_settings.ENDPOINT, NODE_LIST, f"{host}:{port}"))
    return {one.setting.name: one for one in found if one.setting.name not in known}


def warnings_of(environ: Mapping[str, str], given: Mapping[str, Given]) -> list[str]:
    """Returns a warning for the first task of a step with more tasks than nodes: each task is a job of its own."""
    nodes, tasks = _count(environ, STEP_NODES), _count(environ, STEP_TASKS)
    is_asked = launch_settings.NNODES.name in given or launch_settings.STANDALONE.name in given
    if is_asked or not 0 < nodes < tasks or environ.get(TASK, "0") != "0":
        return []
    seen = ", ".join(f"{name}={clip(environ[name])}" for name in (STEP_TASKS, PER_NODE) if name in environ)
    on = "1 node" if nodes == 1 else f"{nodes} nodes"
    return [
        f"this step of srun has {tasks} tasks on {on} ({seen}), and each of them is a job of its own, with one node: "
        f"for one job on all nodes, start one task on each (srun --ntasks={nodes} --ntasks-per-node=1); for {tasks} "
        f"separate jobs, write {launch_settings.STANDALONE.flag}"
    ]


def first_node(node_list: str) -> str:
    """Returns the first node: n1-ib0 for n[1-3,7]-ib0; "" if the text is not a list of nodes."""
    first = re.match(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", node_list)
    if first is None or (len(first[0]) < len(node_list) and node_list[len(first[0])] != ","):
        return ""
    return re.sub(r"\[([0-9]+)[0-9,-]*\]", r"\1", first[0])


def _from(environ: Mapping[str, str], setting: Setting, variable: str, text: str) -> Given:
    shown = f"{setting.flag} {clip(text)} (from {variable}={clip(environ[variable])})"
    return read(setting, text, shown=shown, removal=f"write {setting.flag}")


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text[:9]) if text.isascii() and text.isdigit() else 0
