"""What does the directory of a private supervisor contain, in which its ranks look for it?

Ranks read the directory, and create it if it is missing. Only the supervisor that holds LIFE_FILE's lock writes or
removes anything in it. The lock on the directory itself is the starters' turn: it keeps N ranks from starting N
supervisors, and nothing else relies on it.
"""

from __future__ import annotations

ENDPOINT_FILE = "endpoint.json"  # the variables below, as an object
RANKS_FILE = "ranks"  # the ranks that have connected: "local_rank pid started_ticks" on each line
MEETING_FILE = "meeting.json"  # on several nodes: where the leader of the job serves, and the secret of its nodes
LIFE_FILE = "supervisor.lock"  # locked by its supervisor while that process exists, even if stopped
ADOPTED_PREFIX = "inprocess-"  # followed by a key of the job; names a directory inside the user's own

# The line that a supervisor writes at its start: it is ready; another one owns the directory; or why it can't start.
READY = "ready"
TAKEN = "taken: "
MEETING = "meeting: "  # and the text of MEETING_FILE; comes first, from a supervisor that leads other nodes'

# Tell a rank how to reach its supervisor. `holdfast run` sets them in the rank's environment.
SOCKET_VARIABLE = "HOLDFAST_SOCKET"
JOB_ID_VARIABLE = "HOLDFAST_JOB_ID"
TOKEN_VARIABLE = "HOLDFAST_TOKEN_FILE"
CYCLE_VARIABLE = "HOLDFAST_CYCLE"

# Names the spawner that has started a process: jobs of the same id may run beside each other on a machine.
SPAWNER_VARIABLE = "HOLDFAST_SPAWNER"

# The process that writes the logs of cycles may outlive a lost spawner, so it shows the job's id under this name, which
# is as long as the other.
LOG_OF_VARIABLE = "HOLDFAST_LOG_OF"
LOG_PROCESS_NAME = "hf-log"  # the kernel shows it even of one that has ended
