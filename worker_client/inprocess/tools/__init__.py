"""What helps to try out restarts inside the process."""
