"""Which node leads a job whose leader may be lost? Backends, the election, and its effects on this node."""
