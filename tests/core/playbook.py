"""How does a test talk with one machine? Events go in with >>; the actions that must come out follow with <<.

    play = Playbook(step, initial_state())
    play.at(2.0) >> DeadlineReached() << ReadPage()
    play >> WorkerEnded() << ()

A mismatch prints the whole conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

S = TypeVar("S")
Step = Callable[..., tuple[S, tuple[Any, ...]]]


class Playbook(Generic[S]):
    """`given` is passed to every step besides the time."""

    def __init__(self, step: Step[S], state: S, **given: object) -> None:
        self._step = step
        self._given = given
        self.state = state
        self.now_s = 0.0
        self.last: tuple[Any, ...] = ()
        self._transcript: list[str] = []

    def at(self, now_s: float) -> Playbook[S]:
        assert now_s >= self.now_s, "time goes forward"
        self.now_s = now_s
        return self

    def __rshift__(self, event: object) -> Playbook[S]:
        self.state, self.last = self._step(self.state, event, now_s=self.now_s, **self._given)
        self._transcript.append(f"{self.now_s:8.3f} >> {event}")
        self._transcript.extend(f"{'':8} << {action}" for action in self.last)
        self._transcript.append(f"{'':8} == {self.state}")
        return self

    def __lshift__(self, actions: object) -> Playbook[S]:
        wanted = cast("tuple[object, ...]", actions) if isinstance(actions, tuple) else (actions,)
        assert self.last == wanted, self._said(f"wanted {wanted}")
        return self

    def of(self, *kinds: type) -> list[Any]:
        """Returns the last actions of these types."""
        return [action for action in self.last if isinstance(action, kinds)]

    def has(self, *actions: object) -> Playbook[S]:
        """Checks that these are among the last actions, in this order."""
        rest = iter(self.last)
        assert all(action in rest for action in actions), self._said(f"wanted in this order {actions}")
        return self

    def lacks(self, kinds: type | Iterable[type]) -> Playbook[S]:
        kinds = (kinds,) if isinstance(kinds, type) else tuple(kinds)
        assert not self.of(*kinds), self._said(f"wanted none of {kinds}")
        return self

    def _said(self, wanted: str) -> str:
        return "\n".join([*self._transcript, wanted])
