"""How does a Lightning training send heartbeats or sections without a change to its own code?

`FaultToleranceCallback` sends heartbeats, `FaultToleranceSectionsCallback` uses the sections "setup", "step" and
"checkpointing". Both commit the checkpoints that Lightning writes as one file. They are defined on first use, on top of
whichever package the script uses: `lightning` or `pytorch_lightning`.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_client import all_reduce_max, lightning_checkpoints, simulated_fault, state_file
from worker_client.rank_monitor_client import RankMonitorClient
from worker_client.workload_control import WorkloadAction, WorkloadControlRequest

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
SECTIONS = ("setup", "step", "checkpointing")
STEPS_BEFORE_CALCULATION = 2

ExceptionPolicy = Callable[[BaseException], "WorkloadControlRequest | None"]


class _Trainer(Protocol):
    """The part of Lightning's trainer that is used here."""

    is_global_zero: bool
    sanity_checking: bool
    enable_validation: bool
    global_step: int
    current_epoch: int
    max_steps: int
    max_epochs: int | None
    default_root_dir: str
    callbacks: Sequence[object]
    save_checkpoint: Callable[..., None]


class _Monitored:
    """The part that both callbacks share: the client's life, the state file, the end of training."""

    def __init__(
        self,
        autoresume: bool = False,
        calculate_timeouts: bool = True,
        simulated_fault_params: object = None,
        *,
        exp_dir: str | Path | None = None,
        exc_handling_policy: ExceptionPolicy | None = None,
        logger_name: str = "holdfast",
    ) -> None:
        """`exp_dir` holds the calculated timeouts: a folder that all ranks see (default: the trainer's root folder).

        With `autoresume`, the file named in FAULT_TOL_FINISHED_FLAG_FILE appears once training is complete. Given an
        exception that ends training, the policy returns what the supervisor should do, or None for the default.
        `simulated_fault_params`: see simulated_fault.simulate; the fault comes so long after training begins.
        """
        super().__init__()
        self._exp_dir = exp_dir
        self._autoresume = autoresume
        self._calculate_timeouts = calculate_timeouts
        self._simulated_fault_params = simulated_fault_params
        self._policy = exc_handling_policy
        self._log = logging.getLogger(logger_name)
        self._client: RankMonitorClient | None = None
        self._checkpoint_io: lightning_checkpoints.CheckpointIO | None = None  # while it commits what it writes

    # --- hooks of Lightning ---

    def setup(self, trainer: _Trainer, pl_module: object, stage: str) -> None:
        if self._client is not None:
            return
        client = RankMonitorClient()
        self._has_loaded = self._has_validated = False
        state_file.load(client, self._folder(trainer))
        client.init_workload_monitoring()
        self._client = client
        self._checkpoint_io = lightning_checkpoints.of_trainer(trainer)
        if self._checkpoint_io is not None:
            lightning_checkpoints.begin(self._checkpoint_io)
        self._begin(client, trainer)

    def teardown(self, trainer: _Trainer, pl_module: object, stage: str) -> None:
        self._end(trainer)

    def on_load_checkpoint(self, trainer: _Trainer, pl_module: object, checkpoint: object) -> None:
        self._has_loaded = True

    def on_validation_end(self, trainer: _Trainer, pl_module: object) -> None:
        if not trainer.sanity_checking:
            self._has_validated = True

    def on_train_start(self, trainer: _Trainer, pl_module: object) -> None:
        if self._simulated_fault_params is not None:
            simulated_fault.simulate(self._simulated_fault_params)

    def on_train_end(self, trainer: _Trainer, pl_module: object) -> None:
        if self._autoresume and trainer.is_global_zero and _is_complete(trainer):
            state_file.mark_finished()

    def on_exception(self, trainer: _Trainer, pl_module: object, exception: BaseException) -> None:
        request = self._policy(exception) if self._policy is not None else None
        if request is not None:
            RankMonitorClient.send_workload_control_request(self._client or RankMonitorClient(), request)
            if self._autoresume and request.action is WorkloadAction.ShutdownWorkload:
                state_file.mark_finished()
        self._end(trainer)

    # --- for the two kinds ---

    def _begin(self, client: RankMonitorClient, trainer: _Trainer) -> None:
        raise NotImplementedError

    def _end(self, trainer: _Trainer) -> None:
        checkpoint_io, self._checkpoint_io = self._checkpoint_io, None
        if checkpoint_io is not None:
            lightning_checkpoints.end(checkpoint_io)
        client, self._client = self._client, None
        if client is not None:
            client.shutdown_workload_monitoring()

    def _has_measured(self, trainer: _Trainer) -> bool:
        """Returns whether the longest silences of training have been measured; the same on all ranks."""
        return self._has_validated or not trainer.enable_validation

    def _folder(self, trainer: _Trainer) -> Path:
        return Path(self._exp_dir if self._exp_dir is not None else trainer.default_root_dir)

    def _keep(self, client: RankMonitorClient, trainer: _Trainer) -> None:
        self._log.info("timeouts were calculated: %s, %s", client.hb_timeouts, client.section_timeouts)
        if trainer.is_global_zero:
            state_file.save(client, self._folder(trainer))


class _Heartbeats(_Monitored):
    """Sends a heartbeat after each batch.

    Calculates limits once, in a run that has loaded and saved a checkpoint and, if it validates, has done so once.
    """

    def _begin(self, client: RankMonitorClient, trainer: _Trainer) -> None:
        self._steps = 0
        self._has_saved = False
        self._is_decided = False

    def on_save_checkpoint(self, trainer: _Trainer, pl_module: object, checkpoint: object) -> None:
        self._has_saved = True

    def on_train_batch_end(self, trainer: _Trainer, pl_module: object, *_: object) -> None:
        client = self._client
        if client is None:
            return
        client.send_heartbeat()
        self._steps += 1
        seen_all = self._steps >= STEPS_BEFORE_CALCULATION and self._has_loaded and self._has_saved
        if not self._calculate_timeouts or not seen_all or self._is_decided or not self._has_measured(trainer):
            return
        if self._is_calculated_on_all(client):
            self._is_decided = True
        elif client.calculate_and_set_hb_timeouts(skip_if_not_ready=True):
            self._is_decided = True
            self._keep(client, trainer)

    def _is_calculated_on_all(self, client: RankMonitorClient) -> bool:
        """Returns the same on all ranks: one that could not read the limits of an earlier run needs all the others."""
        timeouts = client.hb_timeouts
        is_missing = timeouts is None or not timeouts.were_calculated
        return all_reduce_max.maxima([float(is_missing)]) == [0.0]

    def _beat(self, trainer: _Trainer, pl_module: object, *_: object) -> None:
        if self._client is not None:
            self._client.send_heartbeat()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _beat


class _Sections(_Monitored):
    """Uses the sections "setup" until the first batch, "step" for each batch, "checkpointing" around each save.

    Limits are recalculated after each save; in a run that validates, from the first save after a validation on. That of
    "setup" is left alone in a run that has loaded no checkpoint.
    """

    def _begin(self, client: RankMonitorClient, trainer: _Trainer) -> None:
        self._is_set_up = self._is_stepping = False
        self._save_checkpoint = trainer.save_checkpoint
        client.start_section("setup")

        def save_checkpoint(*arguments: object, **named: object) -> None:
            """Saves within a section: Lightning has a hook before a save, none after it."""
            if self._client is None:
                self._save_checkpoint(*arguments, **named)
                return
            self._client.start_section("checkpointing")
            try:
                self._save_checkpoint(*arguments, **named)
            finally:
                self._client.end_section("checkpointing")
            self._calculate(self._client, trainer)

        trainer.save_checkpoint = save_checkpoint

    def _end(self, trainer: _Trainer) -> None:
        if self._client is not None:
            vars(trainer).pop("save_checkpoint", None)
        super()._end(trainer)

    def _open(self, trainer: _Trainer, pl_module: object, *_: object) -> None:
        client = self._client
        if client is None or trainer.sanity_checking:
            return  # the sanity check is part of the setup
        if not self._is_set_up:
            self._is_set_up = True
            client.end_section("setup")
        self._close(trainer, pl_module)  # Lightning does not end a batch whose hook on_train_batch_start returns -1
        client.start_section("step")
        self._is_stepping = True

    def _close(self, trainer: _Trainer, pl_module: object, *_: object) -> None:
        if self._client is not None and self._is_stepping:  # Lightning ends a batch of None, but never starts it
            self._client.end_section("step")
        self._is_stepping = False

    on_train_batch_start = on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _open
    on_train_batch_end = on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _close
    on_train_epoch_end = _close

    def _calculate(self, client: RankMonitorClient, trainer: _Trainer) -> None:
        timeouts = client.section_timeouts
        if not self._calculate_timeouts or timeouts is None or not self._has_measured(trainer):
            return
        learned = SECTIONS if self._has_loaded else SECTIONS[1:]
        names = [name for name in learned if name in timeouts.section]
        if client.calculate_and_set_section_timeouts(names, skip_if_not_ready=True):
            self._keep(client, trainer)


def _is_complete(trainer: _Trainer) -> bool:
    """Returns whether training is complete, and not just interrupted, for example by a time limit."""
    if trainer.max_steps >= 0 and trainer.global_step >= trainer.max_steps:
        return True
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
        return True
    return any(getattr(callback, "stopped_epoch", 0) for callback in trainer.callbacks)  # EarlyStopping


# --- on top of Lightning -------------------------------------------------------------------------------------------

_KINDS: dict[str, type[_Monitored]] = {
    "FaultToleranceCallback": _Heartbeats,
    "FaultToleranceSectionsCallback": _Sections,
}

if TYPE_CHECKING:
    FaultToleranceCallback = _Heartbeats
    FaultToleranceSectionsCallback = _Sections

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback"]


def __getattr__(name: str) -> object:
    kind = _KINDS.get(name)
    if kind is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = _callback_class()
    made = type(name, (kind, base), {"__module__": __name__, "__doc__": kind.__doc__})
    globals()[name] = made
    return made


def _callback_class() -> type:
    """Returns the class from the package that the script has loaded; if none or both, from the first installed one."""
    loaded = [package for package in PACKAGES if package in sys.modules]
    for package in (*loaded, *PACKAGES):
        try:
            return importlib.import_module(package).Callback
        except ModuleNotFoundError as error:
            if error.name is None or not package.startswith(error.name):
                raise
    raise ImportError("cannot make the callback: Lightning is not installed; pip install lightning")
