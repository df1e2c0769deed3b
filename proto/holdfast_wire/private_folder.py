"""What lies in the directory of a private supervisor, where the ranks that it serves look for it?"""

from __future__ import annotations

ENDPOINT_FILE = "endpoint.json"  # the variables below, as an object
RANKS_FILE = "ranks"  # whom it has met: "local_rank pid started_ticks" on each line
LIFE_FILE = "supervisor.lock"  # its supervisor keeps it locked while it lives, stopped or not
ADOPTED_PREFIX = "inprocess-"  # and a key of the job: the directory's name, in the user's own
STARTERS_LOCK = "inprocess.lock"  # beside it; held to start a supervisor, or to remove what one left
READY = "ready"  # the line that it writes once ranks can come; another one says why it could not start

# How a rank speaks to its supervisor; under `holdfast run` they are in its environment.
SOCKET_VARIABLE = "HOLDFAST_SOCKET"
JOB_ID_VARIABLE = "HOLDFAST_JOB_ID"
TOKEN_VARIABLE = "HOLDFAST_TOKEN_FILE"
CYCLE_VARIABLE = "HOLDFAST_CYCLE"
