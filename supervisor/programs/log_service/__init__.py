"""The log server of a job (--ft-enable-log-server): processes on all nodes, one of which writes the files."""
