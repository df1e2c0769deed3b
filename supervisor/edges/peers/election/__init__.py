"""Who leads a job whose leader may be lost? Backends, the election, and what follows from it for this node."""
