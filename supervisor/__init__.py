"""The per-node daemon: keeps the ranks of distributed training jobs running."""

__version__ = "0.1.0"
