"""What may a user set, and where may each value come from?"""

from supervisor.config.job_spec import Entry, JobSpec, Redirect, SpawnMethod

__all__ = ["Entry", "JobSpec", "Redirect", "SpawnMethod"]
