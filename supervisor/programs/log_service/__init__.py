"""The log server of a job (--ft-enable-log-server): processes that talk over gRPC, one of which writes the files."""
