"""What do tracing systems get: each recovery of a job as one trace, its phases as spans."""
