"""What a user may set, and where each value may come from."""

from supervisor.config.job_spec import Entry, JobSpec, Redirect, SpawnMethod

__all__ = ["Entry", "JobSpec", "Redirect", "SpawnMethod"]
