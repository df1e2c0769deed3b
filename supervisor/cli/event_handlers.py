"""Which handlers must get the events of a supervisor in this process, so that --on-event receives them?"""

from __future__ import annotations

from contextlib import ExitStack
from logging import Handler

from supervisor.config.event_hooks import EventHooks


def event_handlers(hooks: EventHooks, stack: ExitStack) -> tuple[Handler, ...]:
    """Returns the handlers; closing `stack` waits a bounded time for the last event to be delivered."""
    if not hooks.are_set:
        return ()
    from supervisor.edges.operators.notifier import EventHandler, notifying  # Loaded only where it is asked for.

    return (EventHandler(stack.enter_context(notifying(hooks))),)
