"""What do tracing systems get? Each recovery of a job as one trace, with its phases as spans."""
