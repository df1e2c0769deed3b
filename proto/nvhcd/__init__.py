"""What is the interface of a node health service (nvhcd)? Others define it: one call and two messages."""
