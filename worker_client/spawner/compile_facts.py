"""What does torch.compile find out once in each process, so that it can be found out before the workers are forked?

Two things, which take a second and more in each worker, even if all that it compiles comes from the cache: a hash of
torch's sources, and with which vector instructions the compiler's output can be loaded (each worker compiles and loads
probes, one worker after the other, behind a lock).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Protocol, cast

_COMPILER = "torch._inductor.codecache"
_INSTRUCTIONS = "torch._inductor.cpu_vec_isa"


class _CodeCache(Protocol):
    def torch_key(self) -> bytes: ...


class _VectorInstructions(Protocol):
    supported_vec_isa_list: list[object]

    def x86_isa_checker(self) -> list[str]: ...
    def valid_vec_isa_list(self) -> list[object]: ...


def find_out() -> None:
    """Finds them out if the compiler is loaded; torch keeps them. Where torch has no such thing, nothing happens."""
    if _COMPILER not in sys.modules:
        return
    with suppress(Exception):  # parts of torch that no one promises: without them, each worker finds it out
        cast("_CodeCache", sys.modules[_COMPILER]).torch_key()
    with suppress(Exception):
        _find_instructions(cast("_VectorInstructions", sys.modules[_INSTRUCTIONS]))


def _find_instructions(torch_s: _VectorInstructions) -> None:
    """Keeps the answer only if all probes went well: a worker may find a compiler that this process does not."""
    of_cpu = set(torch_s.x86_isa_checker())
    expected = [each for each in torch_s.supported_vec_isa_list if of_cpu.issuperset(str(each).split())]
    found: list[object] = []
    try:
        found = torch_s.valid_vec_isa_list()
    finally:
        if found != expected:
            _forget(torch_s)


def _forget(torch_s: _VectorInstructions) -> None:
    classes = {of for each in torch_s.supported_vec_isa_list for of in type(each).__mro__}
    for kept in (torch_s.valid_vec_isa_list, *(value for of in classes for value in vars(of).values())):
        clear = getattr(kept, "cache_clear", None)
        if clear is not None:
            clear()
