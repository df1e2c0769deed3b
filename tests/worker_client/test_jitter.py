"""The callbacks under jitter: learned limits never end a training for a pause below the floor.

Simulated: the framework's hooks are called in its order, on the test's clock, and the rank's real monitor judges at the
worst moment, just before each stamp.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import rank_monitor
from worker_client import heartbeat_intervals, lightning, rank_progress, sections, transformers
from worker_client.channel_protocol import Welcomed
from worker_client.progress_page_writer import ProgressPage, Snapshot
from worker_client.rank_monitor_client import RankMonitorClient
from worker_client.timeouts import Limits

FLOOR_S = 5.0
PHASE_S = FLOOR_S / 4  # no silence has more than three of these: outside, in the step, and in a save
SECTIONS = ("setup", "step", "checkpointing")
NS = 1_000_000_000


class Rank:
    """A rank whose clock the test sets, and which its monitor checks."""

    def __init__(self, patch: pytest.MonkeyPatch, safety_factor: float) -> None:
        self.now_ns = NS
        self.clients: list[RankMonitorClient] = []
        for module in (heartbeat_intervals, sections, rank_progress):
            patch.setattr(module, "monotonic_ns", lambda: self.now_ns)
        for module in (lightning, transformers):
            patch.setattr(module, "RankMonitorClient", lambda: self._client(safety_factor))

    def _client(self, safety_factor: float) -> RankMonitorClient:
        """Returns a client that a supervisor has welcomed, without limits until some are learned."""
        client = RankMonitorClient()
        begin = client.init_workload_monitoring

        def init(num_warmup_iters: int | None = None) -> None:
            begin(num_warmup_iters)
            monitoring = client._monitoring  # pyright: ignore[reportPrivateUsage]
            assert monitoring is not None
            welcome = Welcomed(
                cycle=0, rank=0, page_shared=False, limits=Limits(), sections=SECTIONS, warm_up_steps=0,
                safety_factor=safety_factor, learned_limit_floor_s=FLOOR_S, install_exception_hook=False,
            )  # fmt: skip
            monitoring.welcomed(welcome, ProgressPage.private())
            self.clients.append(client)

        client.init_workload_monitoring = init
        return client

    def passes(self, phase_s: float) -> None:
        """Lets time pass; the monitor checks at its end."""
        self.now_ns += round(phase_s * NS)
        for client in self.clients[-1:]:
            monitoring = client._monitoring  # pyright: ignore[reportPrivateUsage]
            if monitoring is None:
                continue
            limits = monitoring.timeouts.limits()
            told = HangLimits(
                limits.initial_heartbeat_s,
                limits.heartbeat_s,
                limits.sections,
                limits.out_of_section_s,
                warm_up_steps=0,
            )
            seen, now_s = self._seen(monitoring.progress.rearm()), self.now_ns / NS
            _, actions = rank_monitor.step(
                rank_monitor.Reading(told, seen), rank_monitor.ProgressRead(seen), now_s=now_s
            )
            assert actions == (), f"ended for a pause below the floor: {actions}"

    def _seen(self, page: Snapshot) -> Progress:
        return Progress(
            initialised_at_s=page.initialised_ns / NS,
            out_of_section_since_s=page.out_of_section_since_ns / NS,
            heartbeat_at_s=page.heartbeat_ns / NS if page.heartbeat_ns else None,
            heartbeats=page.heartbeats,
            open_sections=tuple((SECTIONS[slot], opened_ns / NS) for slot, opened_ns in page.open_sections),
            first_step_seen=page.first_step_seen,
            steps_since_first=page.steps_since_first,
            read_at_s=self.now_ns / NS,
        )


# Before a step, in it, and in a save: None is no save.
@contextmanager
def ranks(safety_factor: float) -> Generator[tuple[Rank, Path]]:
    """A rank and the folder of its training; what a failed example has left open is closed."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.delenv("WORLD_SIZE", raising=False)
        rank = Rank(patch, safety_factor)
        try:
            yield rank, Path(folder)
        finally:
            for client in rank.clients:
                client.shutdown_workload_monitoring()


PHASES = st.floats(0.001, PHASE_S)
STEPS = st.lists(st.tuples(PHASES, PHASES, st.none() | PHASES), min_size=3, max_size=12)
Steps = Sequence[tuple[float, float, float | None]]
Train = Callable[[Rank, Path, Steps], None]


def by_transformers(rank: Rank, folder: Path, steps: Steps) -> None:
    hooks = transformers._Hooks()  # pyright: ignore[reportPrivateUsage]
    arguments: Any = SimpleNamespace(
        output_dir=str(folder), eval_strategy="no", ignore_data_skip=False, load_best_model_at_end=False
    )
    state: Any = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=len(steps))
    control: Any = SimpleNamespace(should_save=False, should_evaluate=False)
    hooks.on_train_begin(arguments, state, control)
    for before_s, inside_s, save_s in steps:
        control.should_save = save_s is not None
        rank.passes(before_s)
        hooks.on_step_begin(arguments, state, control)
        rank.passes(inside_s)
        hooks.on_step_end(arguments, state, control)
        if save_s is not None:
            rank.passes(save_s)
            hooks.on_save(arguments, state, control)
    hooks.on_train_end(arguments, state, control)


def _trainer(folder: Path, save: Callable[[], None]) -> Any:  # noqa: ANN401 what Lightning's callbacks use of a trainer
    return SimpleNamespace(
        is_global_zero=True, sanity_checking=False, default_root_dir=str(folder), global_step=0, current_epoch=0,
        max_steps=-1, max_epochs=None, callbacks=(), save_checkpoint=save, enable_validation=False,
    )  # fmt: skip


def by_lightning_sections(rank: Rank, folder: Path, steps: Steps) -> None:
    callback, saves_s = lightning._Sections(), iter([each for _, _, each in steps if each is not None])  # pyright: ignore[reportPrivateUsage]
    trainer = _trainer(folder, lambda: rank.passes(next(saves_s)))
    callback.setup(trainer, None, "fit")
    for before_s, inside_s, save_s in steps:
        rank.passes(before_s)
        callback.on_train_batch_start(trainer, None)
        rank.passes(inside_s)
        callback.on_train_batch_end(trainer, None)
        if save_s is not None:
            trainer.save_checkpoint()
    callback.teardown(trainer, None, "fit")


def by_lightning_heartbeats(rank: Rank, folder: Path, steps: Steps) -> None:
    callback = lightning._Heartbeats()  # pyright: ignore[reportPrivateUsage]
    trainer = _trainer(folder, lambda: None)
    callback.setup(trainer, None, "fit")
    callback.on_load_checkpoint(trainer, None, {})
    for before_s, inside_s, save_s in steps:
        rank.passes(before_s)
        rank.passes(inside_s)
        callback.on_train_batch_end(trainer, None)
        if save_s is not None:
            rank.passes(save_s)
            callback.on_save_checkpoint(trainer, None, {})
    callback.teardown(trainer, None, "fit")


@pytest.mark.parametrize("train", [by_transformers, by_lightning_sections, by_lightning_heartbeats])
@given(runs=st.lists(STEPS, min_size=1, max_size=2), safety_factor=st.floats(1, 5))
@settings(max_examples=60)
def test_jitter_below_the_floor_is_never_a_hang(train: Train, runs: list[Steps], safety_factor: float) -> None:
    """Also in a second run, which begins with what the first has learned."""
    with ranks(safety_factor) as (rank, folder):
        for steps in runs:
            train(rank, folder, steps)


def test_a_step_of_60_ms_is_learned_and_a_pause_of_600_ms_is_survived() -> None:
    steps: Steps = [*[(0.01, 0.06, 0.01)] * 5, (0.01, 0.6, None)]
    for train in (by_transformers, by_lightning_sections):
        with ranks(5.0) as (rank, folder):
            train(rank, folder, steps)
            assert '"step": 5.0' in (folder / "_ft_state_.json").read_text()
