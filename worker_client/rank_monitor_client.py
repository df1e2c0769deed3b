"""How does a training script report that it is alive, and how does it learn its limits?

The facade that scripts use. Without a supervisor it warns once and does nothing, but still checks how it is called.
"""

from __future__ import annotations

import operator
import os
import weakref
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from worker_client import all_reduce_max
from worker_client.endpoint import from_environment
from worker_client.errors import RankMonitorClientError
from worker_client.guarded_log import GuardedLog
from worker_client.heartbeat_intervals import HeartbeatIntervals
from worker_client.rank_progress import Maxima
from worker_client.sections import Sections
from worker_client.timeouts import (
    HeartbeatTimeouts,
    MonitoringConfig,
    SectionTimeouts,
    Timeouts,
    calculate_heartbeat,
    calculate_sections,
    from_state,
    to_state,
)
from worker_client.workload_control import WorkloadControlRequest
from worker_client.workload_monitoring import Monitoring, acquire, current, rank_variable, release_when_dropped

CONTROL_WAIT_S = 5.0  # longest wait of a control request for the supervisor's answer
WARM_UP_STEPS_MAX = 1_000_000_000  # a script that passes sys.maxsize means all of its steps

log = GuardedLog("holdfast")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process."""

    global_rank: int
    local_rank: int
    host: str
    pid: int


class RankMonitorClient:
    """Reports to the node's supervisor that this rank makes progress, so that a hang is noticed and ended.

    `send_heartbeat`, `start_section` and `end_section` never block, and make no system call if the supervisor shares a
    page. RankMonitorClientError means wrong use by the script, never a supervisor problem: one that is away, stopped or
    slow costs training nothing. A process forked from this one may keep calling, without effect.
    """

    def __init__(self) -> None:
        self._monitoring: Monitoring | None = None
        self._heartbeats: HeartbeatIntervals | _NotInitialised = _NOT_INITIALISED
        self._sections: Sections | _NotInitialised = _NOT_INITIALISED
        self._rank_info: RankInfo | None = None
        self._timeouts = Timeouts()  # kept while there is no monitoring
        self._owner = object()  # of the sections that this client opens
        self._finalizer: weakref.finalize[..., RankMonitorClient] | None = None

    # --- life ---

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Starts the clocks of this rank. Blocks until the supervisor has answered, 2 s at most.

        After that, the client connects and reconnects in the background. `num_warmup_iters` replaces the configured
        number of first steps to which the limit of the section "warmup" applies.
        """
        if self._monitoring is not None:
            raise RankMonitorClientError(
                "cannot initialise monitoring: it is initialised already; call shutdown_workload_monitoring() first"
            )
        warm_up_steps = None if num_warmup_iters is None else _warm_up_steps(num_warmup_iters)
        self._rank_info, rank = _this_rank(), _launched_rank()
        self._monitoring = acquire(
            from_environment(os.environ),
            rank=rank,
            local_rank=self._rank_info.local_rank,
            timeouts=self._timeouts,
            warm_up_steps=warm_up_steps,
        )
        self._finalizer = release_when_dropped(self, self._monitoring, self._owner)
        progress = self._monitoring.progress
        self._heartbeats, self._sections = progress.heartbeats, progress.sections

    def shutdown_workload_monitoring(self) -> None:
        """Ends monitoring; the process may continue. Idempotent. Blocks 1 s at most, usually well under 1 ms.

        A client that the script drops instead is shut down in the background.
        """
        monitoring, self._monitoring = self._monitoring, None
        self._heartbeats = self._sections = _NOT_INITIALISED
        if monitoring is not None:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._timeouts = monitoring.timeouts
            monitoring.progress.sections.end_all(self._owner)
            monitoring.release()

    # --- progress ---

    def send_heartbeat(self) -> None:
        """Reports that this rank is alive now."""
        self._heartbeats.beat()

    def start_section(self, section: str) -> None:
        """Opens a section; sections may nest and overlap in any order. One that is not monitored costs nothing."""
        self._sections.start(section, self._owner)

    def end_section(self, section: str) -> None:
        """Closes a section that is open."""
        self._sections.end(section)

    def end_all_sections(self) -> None:
        """Closes every section that this client has open, for example after an exception has skipped their ends."""
        self._sections.end_all(self._owner)

    # --- limits ---

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False, *, calc_initial: bool = True) -> bool:
        """Sets the heartbeat limits from what all ranks have measured. Collective: every rank must call it.

        Without `calc_initial`, the limit until the first heartbeat stays: pass it in a run that did not load a
        checkpoint, because one that does takes longer to start.
        Needs two heartbeats on some rank; without them, returns False on all ranks if `skip_if_not_ready`, else raises
        on all ranks.
        """
        monitoring = self._initialised()
        mine = monitoring.progress.maxima()
        initial_s, gap_s = all_reduce_max.maxima([mine.initial_heartbeat_s, mine.heartbeat_s])
        if initial_s <= 0 or gap_s <= 0:
            return _not_ready("heartbeat timeouts", "no rank has sent two heartbeats yet", skip=skip_if_not_ready)
        calculated = calculate_heartbeat(
            monitoring.timeouts.heartbeat,
            initial_max_s=initial_s if calc_initial else None,
            gap_max_s=gap_s,
            safety_factor=monitoring.config.safety_factor,
        )
        monitoring.hold(replace(monitoring.timeouts, heartbeat=calculated))
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Sets the limits of the selected sections (default: all) from what all ranks have measured.

        Collective: every rank must call it with the same arguments. Each selected section must have been closed once
        on some rank; otherwise returns False on all ranks if `skip_if_not_ready`, else raises on all ranks. Returns
        False, too, while the supervisor of any rank has not said yet which sections are monitored.
        """
        monitoring = self._initialised()
        names = sorted(set(monitoring.progress.sections.names if selected_sections is None else selected_sections))
        if not self._ranks_agree(monitoring, [str(calc_out_of_section), *names]):
            return False
        if unknown := [name for name in names if name not in monitoring.progress.sections.names]:
            raise RankMonitorClientError(
                f"cannot calculate section timeouts: {', '.join(unknown)} not monitored; "
                "name them in the job's section timeouts"
            )
        mine = monitoring.progress.maxima()
        outside_s, *sections_s = all_reduce_max.maxima(_section_values(mine, names))
        longest_s = dict(zip(names, sections_s, strict=True))
        missing = [name for name, value in longest_s.items() if value <= 0]
        if calc_out_of_section and outside_s <= 0:
            missing.append("the time outside sections")
        if missing:
            why = f"no rank has measured {', '.join(missing)} yet"
            return _not_ready("section timeouts", why, skip=skip_if_not_ready)
        calculated = calculate_sections(
            monitoring.timeouts.section,
            max_s=longest_s,
            outside_max_s=outside_s if calc_out_of_section else None,
            safety_factor=monitoring.config.safety_factor,
        )
        monitoring.hold(replace(monitoring.timeouts, section=calculated))
        return True

    def _ranks_agree(self, monitoring: Monitoring, arguments: list[str]) -> bool:
        """Returns whether all ranks calculate the same limits; every rank gets the same answer.

        The check comes first, so no rank waits indefinitely in a reduction of a different length.
        """
        digest = float(zlib.crc32("\0".join(arguments).encode()))
        unsettled = 0.0 if monitoring.progress.sections.is_settled else 1.0
        largest, negated_smallest, any_unsettled = all_reduce_max.maxima([digest, -digest, unsettled])
        if any_unsettled:
            if monitoring.has_supervisor:
                log.warning("cannot calculate section timeouts: not every rank has heard from its supervisor yet")
            return False
        if largest != -negated_smallest:
            raise RankMonitorClientError(
                "cannot calculate section timeouts: the ranks do not select the same sections; "
                "pass the same arguments, and configure the same sections, on every rank"
            )
        return True

    # --- state ---

    def state_dict(self) -> dict[str, object]:
        """Returns the calculated timeouts as plain data for JSON, the same on all ranks. May be called at any time."""
        return to_state(self._current_timeouts())

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Loads calculated timeouts of an earlier run, which override configured ones. Works before and after init."""
        self._timeouts = from_state(state_dict)
        if self._monitoring is not None:
            self._monitoring.hold(self._timeouts)

    # --- control ---

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Requests what should happen to the job after this rank's end; stops nothing by itself.

        Blocks until the supervisor has accepted, 5 s at most. Also works before monitoring is initialised.
        """
        monitoring = self._monitoring or current()
        if monitoring is not None:
            accepted = monitoring.request_control(request, timeout_s=CONTROL_WAIT_S)
        else:
            local_rank = _this_rank().local_rank
            once = acquire(from_environment(os.environ), rank=_launched_rank(), local_rank=local_rank, begin=False)
            accepted = once.request_control(request, timeout_s=CONTROL_WAIT_S)
            once.release()
        if not accepted:
            log.warning("the supervisor has not accepted %s; it may have no effect", request.action.name)

    # --- attributes ---

    @property
    def is_initialized(self) -> bool:
        return self._monitoring is not None

    @property
    def cfg(self) -> MonitoringConfig | None:
        """Returns the supervisor's configuration; None before init."""
        return self._monitoring.config if self._monitoring is not None else None

    @property
    def rank_info(self) -> RankInfo | None:
        """Returns this rank's identity; None before init."""
        return self._rank_info

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """Returns the limits in effect; None before init."""
        return self._monitoring.timeouts.heartbeat if self._monitoring is not None else None

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """Returns the limits in effect; None before init."""
        return self._monitoring.timeouts.section if self._monitoring is not None else None

    def _current_timeouts(self) -> Timeouts:
        return self._monitoring.timeouts if self._monitoring is not None else self._timeouts

    def _initialised(self) -> Monitoring:
        if self._monitoring is None:
            raise _not_initialised()
        return self._monitoring


class _NotInitialised:
    """Stands in for the heartbeats and sections of an unmonitored rank, which saves the hot path a check."""

    __slots__ = ()

    def beat(self) -> None:
        raise _not_initialised()

    def start(self, name: str, owner: object) -> None:
        raise _not_initialised()

    def end(self, name: str) -> None:
        raise _not_initialised()

    def end_all(self, owner: object) -> None:
        raise _not_initialised()


_NOT_INITIALISED = _NotInitialised()


def _not_initialised() -> RankMonitorClientError:
    return RankMonitorClientError(
        "cannot do that: monitoring is not initialized; call init_workload_monitoring() first"
    )


def _warm_up_steps(given: int) -> int:
    try:
        steps = operator.index(given)
    except TypeError:
        raise RankMonitorClientError(
            f"cannot have {given!r} warm-up iterations: it is not a whole number; pass an int"
        ) from None
    if steps < 0:
        raise RankMonitorClientError(f"cannot have {steps} warm-up iterations: the number is negative; pass 0 or more")
    return min(steps, WARM_UP_STEPS_MAX)


def _not_ready(what: str, why: str, *, skip: bool) -> bool:
    if skip:
        return False
    raise RankMonitorClientError(f"cannot calculate {what}: {why}; call later, or pass skip_if_not_ready=True")


def _section_values(mine: Maxima, names: list[str]) -> list[float]:
    return [mine.out_of_section_s, *(mine.sections_s[name] for name in names)]


def _launched_rank() -> int:
    """Returns the rank as the launcher numbers it; the script's process group may number its ranks in another way."""
    text = rank_variable()
    return int(text) if text is not None and text.isdecimal() else _this_rank().global_rank


def _this_rank() -> RankInfo:
    """Reads the rank from the default process group, else from the launcher's variables; without both it is rank 0."""
    rank = all_reduce_max.global_rank()
    numbers: list[int] = []
    rank_text = rank_variable() if rank is None else str(rank)
    for name, text in (("RANK", rank_text), ("LOCAL_RANK", os.environ.get("LOCAL_RANK"))):
        text = "0" if text is None else text
        if not text.isdecimal():
            raise RankMonitorClientError(f"cannot tell this rank: {name} is {text!r}; set it to a number")
        numbers.append(int(text))
    return RankInfo(numbers[0], numbers[1], os.uname().nodename, os.getpid())
