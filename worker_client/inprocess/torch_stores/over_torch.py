"""How is a class of ours one of torch's stores, although torch is not loaded until one is opened?"""

from __future__ import annotations

import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from worker_client.inprocess.torch_stores.store_barriers import StoreMixin

if TYPE_CHECKING:
    from typing import Self

    class _OfTorch:
        """Has the methods of KeyStore; a protocol itself can't be instantiated."""

        def set(self, key: str, value: str, /) -> None: ...
        def get(self, key: str, /) -> bytes: ...
        def add(self, key: str, amount: int, /) -> int: ...
        def append(self, key: str, value: str, /) -> None: ...
        def check(self, keys: list[str], /) -> bool: ...
        def wait(self, keys: list[str], timeout: timedelta = ..., /) -> None: ...
        def multi_get(self, keys: list[str], /) -> list[bytes]: ...

else:
    _OfTorch = object  # torch's own class, once an instance is created


class OverTorch(StoreMixin, _OfTorch):
    """Becomes one of torch's stores when an instance is created."""

    _torch_class: ClassVar[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ANN401  # __init__ says what it takes
        torch_class = of_torch(cls._torch_class)
        kind: Any = cls if issubclass(cls, torch_class) else _joined(cls, torch_class)
        return torch_class.__new__(kind)


def of_torch(name: str) -> Any:  # noqa: ANN401  # torch has no types for them
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError(f"cannot open a {name}: this torch has no torch.distributed; install one that has")
    return getattr(torch.distributed, name)


def _joined(cls: type[StoreMixin], torch_class: type) -> type:
    """Returns a class that derives from `cls` and one of torch's stores; created once for each."""
    joined: type | None = vars(cls).get("_over_torch")
    if joined is None:

        def describe(namespace: dict[str, Any]) -> None:
            namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}

        joined = types.new_class(cls.__name__, (cls, torch_class), exec_body=describe)
        cls._over_torch = joined  # pyright: ignore[reportAttributeAccessIssue]  # cached on this very class
    return joined
