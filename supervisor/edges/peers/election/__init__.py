"""Who leads a job whose leader may be lost: backends, the election, and what follows from it for this node."""
