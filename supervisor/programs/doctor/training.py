"""Can the job's Python train, with versions of torch and NCCL that are known to survive restarts?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from supervisor import __version__
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

IMPORT_TIMEOUT_S = 60.0
PYTHON_MIN, TORCH_MIN, NCCL_MIN = (3, 11), (2, 5, 1), (2, 26, 2)
NCCL_ABORT_HANGS = (2, 25, 1)
NCCL_BAD = ((2, 28, 3), (2, 28, 8))  # from, to: in-process restarts fail
# The folder in which doctor is typed is not in the job's path, and may be another user's. (-P came with Python 3.11.)
PROBE = """\
import sys
sys.path[:] = [each for each in sys.path if each]
import json
told = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import worker_client
    import google.protobuf
    told["client"], told["protobuf"] = worker_client.__file__, google.protobuf.__version__
    from importlib import metadata
    try:
        told["client_version"] = metadata.version("holdfast-torch")
    except metadata.PackageNotFoundError:
        pass
except Exception as error:
    told["client_fault"] = str(error) or type(error).__name__
try:
    import torch
    told["torch"] = str(torch.__version__)
    told["cuda"] = torch.version.cuda or ""
    if torch.version.cuda and torch.distributed.is_nccl_available():
        told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    told["torch_fault"] = str(error) or type(error).__name__
print(json.dumps(told))
"""


def look(machine: Machine, python: str, *, timeout_s: float = IMPORT_TIMEOUT_S) -> list[DoctorFinding]:
    """Checks what the job's interpreter `python` imports. Blocks for `timeout_s` at most."""
    area = Area("training")
    answer = machine.ask([python, "-c", PROBE], timeout_s=timeout_s)
    told = _told(answer.stdout)
    if answer.is_late and (load := machine.overload()):
        area.note(
            "python",
            f"{python} could not be checked in {timeout_s:g} s; the machine has a load of {load:g}",
            why="under such a load, importing torch takes longer",
            remedy="run holdfast doctor again once less is running",
        )
        return area.findings
    if answer.fault or not told:
        area.problem(
            "python",
            f"{python}: {answer.fault or 'it prints something of its own at its start'}",
            why="the job's ranks run in it",
            remedy="name the job's interpreter with --python; if this is it, see how long it takes to import torch",
        )
        return area.findings
    judge(area, told, python)
    _variables(area, machine.environ, has_nccl="nccl" in told)
    return area.findings


def _told(text: str) -> dict[str, str]:
    try:
        return json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {}


def judge(area: Area, told: Mapping[str, str], python: str) -> None:
    _python(area, told, python)
    _client(area, told, python)
    _torch(area, told, python)
    _nccl(area, told)


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _python(area: Area, told: Mapping[str, str], python: str) -> None:
    if version_of(told["python"]) < PYTHON_MIN:
        area.problem(
            "python",
            f"{python} is {told['python']}",
            why="the worker's client needs 3.11 or newer",
            remedy="make the job's environment with a newer Python",
        )
    else:
        area.ok("python", f"{python}, {told['python']}")


def _client(area: Area, told: Mapping[str, str], python: str) -> None:
    if fault := told.get("client_fault"):
        area.problem(
            "worker client",
            f"{python} cannot import worker_client: {fault}",
            why="ranks send no heartbeats, and restarts inside the process do not work",
            remedy=f"{python} -m pip install holdfast-torch, from a clone or a wheel that was built",
        )
    elif told.get("client_version", __version__) != __version__:
        area.note(
            "worker client",
            f"{told['client_version']} in the job's Python, {__version__} here",
            why="versions that are close work together; an older one lacks what came since",
        )
    else:
        area.ok("worker client", f"{told['client']}, with protobuf {told['protobuf']}")


def _torch(area: Area, told: Mapping[str, str], python: str) -> None:
    if fault := told.get("torch_fault"):
        area.warn(
            "torch",
            f"{python} cannot import torch: {fault}",
            why="scripts that need it fail at their start",
            remedy=f"{python} -m pip install torch, as pytorch.org says for this machine",
        )
        return
    version = told["torch"]
    if version_of(version) < TORCH_MIN:
        area.warn(
            "torch",
            version,
            why="restarts inside the process need 2.5.1 or newer",
            remedy=f"{python} -m pip install --upgrade torch",
        )
    else:
        area.ok("torch", f"{version}{', CUDA ' + told['cuda'] if told.get('cuda') else ', without CUDA'}")


def _nccl(area: Area, told: Mapping[str, str]) -> None:
    text = told.get("nccl", "")
    if not text:
        area.skip("nccl", "no torch to ask" if told.get("torch_fault") else "this torch has none")
        return
    version = version_of(text)
    low, high = NCCL_BAD
    if low <= version <= high:
        bad = "restarts inside the process fail with NCCL 2.28.3 to 2.28.8"
    elif version == NCCL_ABORT_HANGS:
        bad = "with NCCL 2.25.1 the abort of a collective can hang"
    elif version < NCCL_MIN:
        bad = "restarts inside the process need NCCL 2.26.2 or newer"
    else:
        area.ok("nccl", text)
        return
    area.warn(
        "nccl",
        text,
        why=f"{bad}; the ranks are then restarted as processes",
        remedy="pip install nvidia-nccl-cu12==2.27.5, or a torch that brings another",
    )


def _variables(area: Area, environ: Mapping[str, str], *, has_nccl: bool) -> None:
    """Checks the environment variables that the guide to in-process restart asks for."""
    if not has_nccl:
        return
    for name, why in (
        ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "NCCL's watchdog ends the process at an error, so it cannot restart"),
        ("NCCL_NVLS_ENABLE", "NVLink SHARP is not supported there"),
    ):
        if environ.get(name) == "0":
            area.ok(name, "0")
        else:
            area.note(
                name,
                environ.get(name) or "not set",
                why=f"only for scripts that restart inside the process: {why}",
                remedy=f"export {name}=0",
            )
