"""What does the environment say: PET_* values, the job's base environment, and variables that do nothing here?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.setting import Setting
from supervisor.config.value_origin import Given, clip, from_variable, nearest
from supervisor.errors import ConfigurationError

GPUS_PER_NUMA = "HOLDFAST_GPUS_PER_NUMA"
GPUS_PER_NUMA_REFERENCE = "NVRX_GPUS_PER_NUMA"
LOG_LINE_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
GPUS_PER_NUMA_MAX = 1024

# The reference launcher's variables that nothing here reads, with what to do instead.
NOT_READ: dict[str, str] = {
    "NVRX_DISABLE_RANK_MONITORS": "limits are switched off one by one, as with --ft-rank-heartbeat-timeout none",
    "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "any number of jobs may run on a node",
    "NVRX_INJECT_GPU_FAILURE": "failures are not injected",
    "NVRX_LOG_DEBUG": "there is no such log",
    "NVRX_LOG_TO_STDOUT": "messages go to stderr",
    "NVRX_NODE_LOCAL_TMPDIR": "logs are placed by --log-dir",
    "NVRX_LOG_MAX_FILE_SIZE_KB": "logs are placed by --log-dir",
    "NVRX_LOG_MAX_LOG_FILES": "logs are placed by --log-dir",
    "FT_LAUNCHER_LOGLEVEL": "there is no such log",
    "TORCHELASTIC_ENABLE_FILE_TIMER": "torchrun's file timer is not supported yet",
}


def read_variables(environ: Mapping[str, str], settings: Sequence[Setting] = RUN_SETTINGS) -> dict[str, Given]:
    """Reads the settings' variables; an empty one counts as not set. Raises ConfigurationError."""
    given: dict[str, Given] = {}
    for setting in settings:
        for variable in setting.variables:
            text = environ.get(variable)
            if text:
                given[setting.name] = from_variable(setting, variable, text)
                break
    return given


def variable_warnings(environ: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each variable that looks meant for us and is not read."""
    warnings = [f"{name} has no effect here: {why}" for name, why in NOT_READ.items() if name in environ]
    unknown = [name for name in environ if name.startswith("PET_")]
    if unknown:
        known = {setting.variables[0] for setting in RUN_SETTINGS}
        for name in unknown:
            meant = "" if name in known else nearest(name, known)
            if meant:
                warnings.append(f"{clip(name)} is not read: did you mean {meant}")
    return warnings


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the entries of CUDA_VISIBLE_DEVICES; None if it is not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else tuple(each.strip() for each in text.split(","))


def counts_gpus_by_bus(environ: Mapping[str, str]) -> bool:
    """Returns whether CUDA counts GPUs along the PCI bus, as the driver does. Otherwise the fastest has number 0."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def gpus_per_numa(environ: Mapping[str, str]) -> int | None:
    """Returns the number of GPUs per NUMA node, for binding; None for no binding. Raises ConfigurationError."""
    ours, theirs = environ.get(GPUS_PER_NUMA, ""), environ.get(GPUS_PER_NUMA_REFERENCE, "")
    if ours and theirs and ours != theirs:
        raise ConfigurationError(
            f"cannot bind workers to NUMA nodes: {GPUS_PER_NUMA}={clip(ours)} and {GPUS_PER_NUMA_REFERENCE}="
            f"{clip(theirs)} differ; unset one of them"
        )
    text, variable = (ours, GPUS_PER_NUMA) if ours else (theirs, GPUS_PER_NUMA_REFERENCE)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= GPUS_PER_NUMA_MAX):
        raise ConfigurationError(
            f"cannot use {variable}={clip(text)}: it is not a number of GPUs from 1 to {GPUS_PER_NUMA_MAX}; "
            f"write the GPUs of one NUMA node, such as 4"
        )
    return int(text)


ONE_THREAD = "OMP_NUM_THREADS is set to 1 for each worker, as torchrun does: set it yourself to tune"


def job_environment(environ: Mapping[str, str], local_world_size: int) -> tuple[dict[str, str], list[str]]:
    """Returns what the job's processes inherit, with the variables that torchrun adds unless the user has set them."""
    environment = dict(environ)
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if local_world_size > 1 and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = "1"
        return environment, [ONE_THREAD]
    return environment, []
