"""Where does each worker's output go: terminal, file or both, which file, by torchrun's --redirects, --tee, filter?"""

from __future__ import annotations

from string import Template

import msgspec
from holdfast_wire.spawner_link import StreamPlan

from supervisor.config import JobSpec, Redirect

DEFAULT_LOG_BYTES_MAX = 64 * 1024 * 1024  # for each stream of each rank and cycle; one older part of that size is kept

TERMINAL_LOG = "stdout.log"  # for both streams, if they go to one terminal

TORCHRUN_PREFIX = "[${role_name}${local_rank}]:"

_STREAMS = (("stdout", Redirect.OUT), ("stderr", Redirect.ERR))


class Console(msgspec.Struct, frozen=True):
    """The supervisor's own stdout and stderr."""

    present: bool = True  # False: a daemon, whose output goes only to files
    stdout_is_tty: bool = False
    stderr_is_tty: bool = False


def rank_log_dir(log_dir: str, cycle: int, rank: int) -> str:
    """Returns the folder of a rank's logs. `log_dir`: of one run of a job."""
    return f"{log_dir}/cycle_{cycle}/rank_{rank}"


def plan_streams(
    spec: JobSpec, console: Console, *, log_dir: str, cycle: int, local_rank: int, rank: int
) -> tuple[StreamPlan, StreamPlan]:
    """Plans stdout and stderr of one worker.

    The default log also keeps all output, within a cap. On a terminal, a worker has one log for both streams, so that
    progress bars, colours and pdb work as under torchrun; that log keeps the order of the output.
    """
    folder = rank_log_dir(log_dir, cycle, rank)
    shown = console.present and (not spec.local_ranks_filter or local_rank in spec.local_ranks_filter)
    redirected = _wanted(spec.redirects, local_rank)
    teed = _wanted(spec.tee, local_rank)
    on_terminal = [
        flag
        for flag, is_tty in ((Redirect.OUT, console.stdout_is_tty), (Redirect.ERR, console.stderr_is_tty))
        if shown and is_tty and not (teed | redirected) & flag
    ]
    plans: list[StreamPlan] = []
    for name, flag in _STREAMS:
        path = f"{folder}/{TERMINAL_LOG if len(on_terminal) == len(_STREAMS) else f'{name}.log'}"
        if teed & flag:
            plans.append(StreamPlan(console=shown, prefix=_prefix(spec, local_rank, rank), file=path))
        elif redirected & flag:
            plans.append(StreamPlan(console=False, file=path, direct=True))
        else:
            plans.append(StreamPlan(console=shown, file=path, file_bytes_max=DEFAULT_LOG_BYTES_MAX))
    return plans[0], plans[1]


def _prefix(spec: JobSpec, local_rank: int, rank: int) -> str:
    """Fills in torchrun's template with its names; unknown ones stay as they are."""
    template = Template(spec.log_line_prefix_template or TORCHRUN_PREFIX)
    return template.safe_substitute(role_name=spec.role, local_rank=local_rank, rank=rank)


def _wanted(rules: tuple[tuple[int | None, Redirect], ...], local_rank: int) -> Redirect:
    """Returns the last rule that names the rank, else the rule for all."""
    general = Redirect.NONE
    for rank, redirect in rules:
        if rank == local_rank:
            return redirect
        if rank is None:
            general = redirect
    return general
