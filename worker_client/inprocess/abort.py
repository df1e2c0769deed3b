"""How does another thread end what the main thread is waiting for, so that it can be interrupted?"""

from __future__ import annotations

import abc
import contextlib
import gc
import inspect
import sys
from typing import TYPE_CHECKING, Any

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.compose import flattened
from worker_client.inprocess.releasing import flight_recorder
from worker_client.inprocess.releasing.gloo_groups import KeptGroups
from worker_client.inprocess.releasing.gloo_waits import HangUps, gloo_listeners, shut_down_gloo_connections
from worker_client.inprocess.releasing.missing_store_server import SubstituteStores
from worker_client.inprocess.releasing.store_waits import expected, shut_down_store_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker_client.inprocess.state import FrozenState

# The longest wait for each step; a slower one continues in the background.
ABORT_TIMEOUT_S = 10.0
DESTROY_TIMEOUT_S = 10.0
CHECKPOINT_TIMEOUT_S = 5.0

RELEASES_BEFORE_STAND_IN = 3  # a few tenths of a second, in which almost every rank has left the function

# Modules whose AsyncCallsQueue writes checkpoints from its own processes.
_CHECKPOINT_MODULES = (
    "nvidia_resiliency_ext.checkpointing.async_ckpt.core",
    "megatron.core.dist_checkpointing.strategies.async_utils",
)
# What torch.distributed's _world keeps of each group.
_TABLES_OF_GROUPS = (
    "comms",
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "pg_to_tag",
    "tags_to_pg",
    "pg_coalesce_state",
)
# Where Transformer Engine keeps its fp8 state, newest module first.
_FP8_MODULES = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")

log = GuardedLog("holdfast")


class Abort(abc.ABC):
    """Called on the monitor thread of every rank, once per fault, while the main thread may hang in any call.

    It should be quick and raise nothing; an exception is logged and the restart continues.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class AbortTorchDistributed(Abort):
    """Ends all collectives of torch.distributed and then its process groups, whatever their backends.

    NCCL's communicators are aborted in parallel. Gloo's connections, and this iteration's connections to TCPStores, are
    shut down, which torch itself can't do; this also releases a rank that still waits in `init_process_group`. If the
    rank waits for a store that nobody serves, one is served on this host, so that it connects and can be released.
    Before that, the flight recorder is dumped to `torch_fr_trace_path`/iter_<n> if it is on and the path is known (by
    default from HOLDFAST_FR_TRACE_PATH or NVRX_FR_TRACE_PATH). Raises nothing; each step has a time limit.
    """

    _has_run = False  # A derived class may abort in its own way.
    _hang_ups: HangUps  # of this iteration
    _kept: KeptGroups | None = None  # of this iteration; until the main thread is out of the function
    _substitutes: SubstituteStores | None = None  # likewise
    _releases = 0  # of this iteration, after the first

    def __init__(self, torch_fr_trace_path: str | None = None) -> None:
        self.torch_fr_trace_path = torch_fr_trace_path

    def __call__(self, state: FrozenState) -> FrozenState:
        distributed = _torch_distributed()
        # A script that never imported torch.distributed has nothing to abort and should not pay for the import.
        if distributed is None:
            return state
        self._has_run, self._hang_ups, self._kept = True, HangUps(), self._kept or KeptGroups()
        self._releases = 0
        is_initialized = distributed.is_initialized()
        groups = _process_groups() if is_initialized else []
        self._kept.keep(groups)
        if is_initialized:
            flight_recorder.dump(self.torch_fr_trace_path, state, has_nccl=any(map(_nccl_backend, groups)))
        ended = self._release()
        aborts = [
            BoundedThread(f"abort NCCL group {number}", abort)
            for number, group in enumerate(groups)
            if (abort := _nccl_abort(group)) is not None
        ]
        for thread in aborts:
            thread.start()
        join_all(aborts, ABORT_TIMEOUT_S)
        log.debug("ended %d connections of Gloo and of stores and aborted %d NCCL groups", ended, len(aborts))
        if is_initialized:
            _destroy_groups(distributed)
        return state

    def release_again(self, state: FrozenState) -> None:
        """Ends what the main thread, still in the function, may now be waiting for. Returns quickly."""
        if self._has_run:
            self._release()
            self._hang_ups.hang_up(gloo_listeners(), (state.active_world_size or state.world_size) + 1)
            self._releases += 1
            if self._releases >= RELEASES_BEFORE_STAND_IN:
                self._substitutes = self._substitutes or SubstituteStores()
                self._substitutes.open(expected())

    def clear_after(self) -> None:
        """Destroys the groups that the main thread created after the abort, before it left the function."""
        distributed = _torch_distributed()
        if not self._has_run or self._kept is None or distributed is None:
            return
        if self._substitutes is not None:
            self._substitutes.close()
            self._substitutes = None
        if distributed.is_initialized():
            self._kept.keep(_process_groups())
            self._release()
            _destroy_groups(distributed)
        elif unfinished := _process_groups():
            self._kept.keep(unfinished)
            _clear_groups()
        _forget_unfinished_groups()
        _unwrap_excepthook()
        self._kept.let_go()
        self._has_run = False

    def _release(self) -> int:
        return shut_down_store_connections() + shut_down_gloo_connections()


def release_again(abort: Abort, state: FrozenState) -> None:
    """Releases the main thread again. Called repeatedly after the abort, until that thread leaves the function."""
    for each in _torch_aborts(abort):
        each.release_again(state)


def clear_after(abort: Abort) -> None:
    """Cleans up after the abort. Called once; the main thread has left the function and waits for this."""
    for each in _torch_aborts(abort):
        each.clear_after()


class AbortTransformerEngine(Abort):
    """Releases Transformer Engine's user buffers and fp8 state; does nothing if it is not loaded.

    Must run after AbortTorchDistributed: in a Compose, list it first.
    """

    def __call__(self, state: FrozenState) -> FrozenState:
        engine = sys.modules.get("transformer_engine.pytorch")
        if engine is None:
            return state
        destroy_buffers: Callable[[], None] | None = getattr(engine, "destroy_ub", None)
        if destroy_buffers is not None:
            _run_logged("destroy Transformer Engine's user buffers", destroy_buffers)
        for name in _FP8_MODULES:
            fp8_state = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
            if fp8_state is not None:
                _run_logged("reset Transformer Engine's fp8 state", fp8_state.reset)
                break
        return state


class AbortPersistentCheckpointProcesses(Abort):
    """Ends the processes that write checkpoints in the background; does nothing if no such library is loaded."""

    def __call__(self, state: FrozenState) -> FrozenState:
        kinds = tuple(
            kind for name in _CHECKPOINT_MODULES if (kind := getattr(sys.modules.get(name), "AsyncCallsQueue", None))
        )
        if not kinds:
            return state
        # The libraries keep no list of their queues. Use type(), because a proxy may fake __class__.
        queues: list[Any] = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
        closes = [
            BoundedThread(f"close checkpoint queue {number}", lambda queue=queue: queue.close(abort=True))
            for number, queue in enumerate(queues)
        ]
        for thread in closes:
            thread.start()
        join_all(closes, CHECKPOINT_TIMEOUT_S)
        return state


def _torch_aborts(abort: Abort) -> Iterator[AbortTorchDistributed]:
    return (each for each in flattened((abort,)) if isinstance(each, AbortTorchDistributed))


def _torch_distributed() -> Any:  # noqa: ANN401  # torch is not imported just to find out
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() else None


def _forget_unfinished_groups() -> None:
    """Resets the count by which torch names groups, which torch does only after a group was finished.

    A rank that failed inside `init_process_group` would otherwise look for the next group under a different name.
    """
    with contextlib.suppress(ImportError, AttributeError):  # torch has no public way
        from torch.distributed import distributed_c10d

        getattr(distributed_c10d, "_world").group_count = 0  # noqa: B009


def _destroy_groups(distributed: Any) -> None:  # noqa: ANN401  # torch is not imported just for its type
    """Lets torch destroy all groups, and does without if that fails or takes too long.

    torch shuts the groups down first and then empties its tables. A call that comes to that late would forget the next
    iteration's groups, which are in them by then.
    """
    thread = BoundedThread("destroy the process groups", distributed.destroy_process_group)
    thread.start()
    has_ended = join_all([thread], DESTROY_TIMEOUT_S)
    if not has_ended:
        thread.end_later()
    if not has_ended or thread.error is not None:
        _clear_groups()


def _clear_groups() -> None:
    """Empties torch's tables of groups, and so leaves no default group.

    A group that never became the default one is in them, and is never destroyed. The next `init_process_group` would
    find its name taken.
    """
    with contextlib.suppress(ImportError, AttributeError):  # torch has no public way
        from torch.distributed import distributed_c10d

        world = getattr(distributed_c10d, "_world")  # noqa: B009
        for name in _TABLES_OF_GROUPS:
            getattr(world, name, {}).clear()  # torch before 2.13 has no comms
        getattr(distributed_c10d, "_update_default_pg")(None)  # noqa: B009
        getattr(distributed_c10d, "_unregister_all_process_groups")()  # noqa: B009


def _unwrap_excepthook() -> None:
    """Takes back what each `init_process_group` adds to sys.excepthook: one more `[rankN]:` before every line.

    Nothing in torch does, so that the last traceback of a rank that has restarted twice would have three of them.
    """
    while getattr(sys.excepthook, "__qualname__", "") == "init_process_group.<locals>._distributed_excepthook":
        before = inspect.getclosurevars(sys.excepthook).nonlocals.get("old_hook")
        if before is None:
            return
        sys.excepthook = before


def _process_groups() -> list[Any]:
    """Returns all process groups that this process has not destroyed."""
    try:
        from torch.distributed import distributed_c10d

        return list(getattr(distributed_c10d, "_world").pg_map)  # noqa: B009  # torch has no public list of them
    except (ImportError, AttributeError) as error:
        log.warning("cannot list the process groups: %s; their NCCL communicators are not aborted one by one", error)
        return []


def _nccl_backend(group: Any) -> Any:  # noqa: ANN401  # torch's classes differ between its versions
    """Returns the group's ProcessGroupNCCL; None if it has none."""
    import torch
    from torch.distributed import distributed_c10d

    nccl = getattr(distributed_c10d, "ProcessGroupNCCL", None)  # absent if torch was built without NCCL
    if nccl is None:
        return None
    try:
        backend = group._get_backend(torch.device("cuda"))
    except (AttributeError, RuntimeError):  # the group has no backend for this device
        return None
    return backend if isinstance(backend, nccl) else None


def _nccl_abort(group: Any) -> Callable[[], None] | None:  # noqa: ANN401  # torch's classes differ between its versions
    backend = _nccl_backend(group)
    return None if backend is None else getattr(backend, "abort", None) or getattr(backend, "_shutdown", None)


def _run_logged(what: str, run: Callable[[], object]) -> None:
    try:
        run()
    except Exception as error:  # noqa: BLE001  # an abort that fails must not keep the rank from restarting
        log.warning("cannot %s: %s", what, error)
