"""Tools to try out restarts inside the process."""
