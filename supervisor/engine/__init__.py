"""One loop, one writer, one timer: events from the edges go through the core, and its actions are performed."""
