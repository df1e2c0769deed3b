"""The interface of a node health service (nvhcd), which others define: its one call and two messages."""
