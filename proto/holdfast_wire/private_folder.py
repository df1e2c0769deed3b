"""What lies in the directory of a private supervisor, where the ranks that it serves look for it?

Ranks read it and make it where it is missing; all else is done by the supervisor that holds LIFE_FILE's lock, from its
first write to its last removal. The lock of the directory itself is the starters' turn: a courtesy that keeps N ranks
from starting N supervisors, on which nothing else relies.
"""

from __future__ import annotations

ENDPOINT_FILE = "endpoint.json"  # the variables below, as an object
RANKS_FILE = "ranks"  # whom it has met: "local_rank pid started_ticks" on each line
MEETING_FILE = "meeting.json"  # on several nodes: where the leader of the job serves, and the secret of its nodes
LIFE_FILE = "supervisor.lock"  # its supervisor keeps it locked while it lives, stopped or not
ADOPTED_PREFIX = "inprocess-"  # and a key of the job: the directory's name, in the user's own

# The line that a supervisor writes at its start: ranks can come; another one has the directory; or why it can't start.
READY = "ready"
TAKEN = "taken: "
MEETING = "meeting: "  # and the text of MEETING_FILE: the line before, of a supervisor that leads those of other nodes

# How a rank speaks to its supervisor; under `holdfast run` they are in its environment.
SOCKET_VARIABLE = "HOLDFAST_SOCKET"
JOB_ID_VARIABLE = "HOLDFAST_JOB_ID"
TOKEN_VARIABLE = "HOLDFAST_TOKEN_FILE"
CYCLE_VARIABLE = "HOLDFAST_CYCLE"
