"""The modules of torch that an abort uses, replaced by name; their calls in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from worker_client.inprocess.state import State

STATE = State(1, 4, active_rank=1, active_world_size=4, iteration=3).freeze()
TRACE, STACKS = b"a trace", b"a trace with stacks"


class Backend:
    """A ProcessGroupNCCL."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.abort = run


class OldBackend:
    """A backend of torch before 2.6."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._shutdown = run


class Group:
    """A process group with a backend for CUDA, or without one."""

    def __init__(self, backend: object | None) -> None:
        self.backend = backend

    def _get_backend(self, device: str) -> object:
        if self.backend is None:
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self.backend


class Torch:
    """The modules of torch that an abort uses, and its calls in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.is_initialized = True
        self.may_give_stacks = threading.Event()
        self.may_give_stacks.set()
        self.torch, self.distributed = ModuleType("torch"), ModuleType("torch.distributed")
        self.c10d: Any = ModuleType("distributed_c10d")
        self.bindings = ModuleType("torch._C._distributed_c10d")
        self._set(self.torch, __version__="2.13.0+cpu", device=str, distributed=self.distributed)
        self._set(
            self.distributed,
            is_available=lambda: True,
            is_initialized=lambda: self.is_initialized,
            destroy_process_group=lambda: self.calls.append("destroy"),
            distributed_c10d=self.c10d,
        )
        self.groups: dict[Group, object] = {}
        tables = ("pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")
        world = type("World", (), {"pg_map": self.groups, **{name: {} for name in tables}})()
        self._set(
            self.c10d,
            ProcessGroupNCCL=(Backend, OldBackend),
            _world=world,
            _update_default_pg=self._update_default_pg,
            _unregister_all_process_groups=lambda: self.calls.append("unregister"),
        )
        for name, module in {
            "torch": self.torch,
            "torch.distributed": self.distributed,
            "torch.distributed.distributed_c10d": self.c10d,
            "torch._C._distributed_c10d": self.bindings,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)

    def add_group(self, name: str, kind: type[Backend | OldBackend], run: Callable[[], object] | None = None) -> None:
        def noted() -> None:
            if run is not None:
                run()
            self.calls.append(name)

        self.groups[Group(kind(noted))] = None

    def offer_dump(self, name: str) -> None:
        def dump(collectives: bool, stacks: bool, only_active: bool) -> bytes:
            assert collectives
            assert not only_active
            self.calls.append(name)
            if stacks and not self.may_give_stacks.wait(10):
                raise RuntimeError("no stacks")
            return STACKS if stacks else TRACE

        self._set(self.bindings, **{name: dump})

    def _update_default_pg(self, group: Group | None) -> None:
        self.is_initialized = group is not None

    def _set(self, module: ModuleType, **values: object) -> None:
        for name, value in values.items():
            setattr(module, name, value)
