"""How does a transformers Trainer send heartbeats and sections without a change to its own code?

`FaultToleranceCallback` sends both; what the job does not watch costs nothing. The class is defined on first use.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_client import state_file
from worker_client.rank_monitor_client import RankMonitorClient

SECTIONS = ("setup", "step", "checkpointing")


class _Arguments(Protocol):
    output_dir: str | None
    ignore_data_skip: bool
    load_best_model_at_end: bool


class _State(Protocol):
    is_world_process_zero: bool
    global_step: int
    max_steps: int


class _Control(Protocol):
    should_save: bool
    should_evaluate: bool


_training: weakref.ref[_Hooks] | None = None  # the callback that began a training last; a process has one at a time


class _Hooks:
    """Uses the sections "setup" until the first step, "step" for each optimizer step, "checkpointing" around each save.

    Sends a heartbeat after each step and each evaluated batch. All ranks calculate limits together after each save; in
    a run that evaluates, from the first save after an evaluation on.
    """

    def __init__(self, *, calculate_timeouts: bool = True, autoresume: bool = False) -> None:
        """With `autoresume`, the file named in FAULT_TOL_FINISHED_FLAG_FILE appears once training is complete."""
        super().__init__()
        self._calculate_timeouts = calculate_timeouts
        self._autoresume = autoresume
        self._client: RankMonitorClient | None = None
        self._open: str | None = None  # the one section that is open
        self._has_evaluated = self._measures_start = False

    # --- hooks of transformers ---

    def on_train_begin(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        global _training
        if _training is not None and (earlier := _training()) is not None:
            earlier._client = None  # its training ended with an exception: how long a section was open says nothing
            earlier._open = None
        _training = weakref.ref(self)
        self._has_evaluated = False
        # A fresh start loads less than a later one, and how long skipping batches takes depends on how many they are.
        self._measures_start = state.global_step > 0 and args.ignore_data_skip
        self._client = RankMonitorClient()
        state_file.load(self._client, _folder(args))
        self._client.init_workload_monitoring()
        self._enter("setup")

    def on_step_begin(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._enter("step")

    def on_substep_end(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._beat()

    def on_step_end(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._beat()
        self._enter("checkpointing" if control.should_save and not control.should_evaluate else None)

    def on_prediction_step(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._beat()

    def on_evaluate(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._beat()
        self._has_evaluated |= self._open is None  # what comes before the first step belongs to "setup"
        if control.should_save:  # the evaluation came first
            self._enter("checkpointing")

    def on_epoch_end(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        if control.should_save and not control.should_evaluate:
            self._enter("checkpointing")

    def on_save(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._beat()
        self._enter(None)
        if self._has_evaluated or not _evaluates(args):
            self._calculate(args, keep=state.is_world_process_zero)

    def on_train_end(self, args: _Arguments, state: _State, control: _Control, **_: object) -> None:
        self._leave()
        if self._autoresume and state.is_world_process_zero and state.global_step >= state.max_steps:
            state_file.mark_finished()

    # --- what they do ---

    def _enter(self, section: str | None) -> None:
        """Closes the open section and opens this one."""
        if self._client is None or self._open == section:
            return
        if self._open is not None:
            self._client.end_section(self._open)
        if section is not None:
            self._client.start_section(section)
        self._open = section

    def _leave(self) -> None:
        client, self._client, self._open = self._client, None, None
        if client is not None:
            client.shutdown_workload_monitoring()

    def _beat(self) -> None:
        if self._client is not None:
            self._client.send_heartbeat()

    def _calculate(self, args: _Arguments, *, keep: bool) -> None:
        client = self._client
        if client is None or client.section_timeouts is None or not self._calculate_timeouts:
            return
        done = client.calculate_and_set_hb_timeouts(skip_if_not_ready=True, calc_initial=self._measures_start)
        learned = SECTIONS if self._measures_start else SECTIONS[1:]
        names = [name for name in learned if name in client.section_timeouts.section]
        # The best model is loaded outside all sections, at the very end.
        measures_outside = bool(names) and not args.load_best_model_at_end
        # Also without names: the client compares them first, and a rank without a supervisor knows none.
        done |= client.calculate_and_set_section_timeouts(
            names, calc_out_of_section=measures_outside, skip_if_not_ready=True
        )
        if done and keep:
            state_file.save(client, _folder(args))


def _folder(args: _Arguments) -> Path:
    return Path(args.output_dir or ".")


def _evaluates(args: _Arguments) -> bool:
    """Returns whether evaluations are part of the run's plan, which is the same on all ranks."""
    strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")  # older versions
    return strategy != "no"


if TYPE_CHECKING:
    FaultToleranceCallback = _Hooks

__all__ = ["FaultToleranceCallback"]


def __getattr__(name: str) -> object:
    if name != "FaultToleranceCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import transformers  # pyright: ignore[reportMissingImports]

    # Named by a string, so that type checks are the same with and without transformers installed.
    base: type = getattr(transformers, "TrainerCallback")  # noqa: B009
    made = type(name, (_Hooks, base), {"__module__": __name__, "__doc__": _Hooks.__doc__})
    globals()[name] = made
    return made
