"""`holdfast` on a node where one user has taken over her supervisor: UID, FILE OF LIES, then the arguments of holdfast.

The end is the same as with ptrace or pidfd_getfd: her program has the socket that root's process connects to.
"""

import sys
from pathlib import Path

from supervisor.cli import main
from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import user_process

uid, lies = int(sys.argv[1]), sys.argv[2]
command_of = user_process.command_of
DECEIVER = Path(__file__).with_name("deceiving_supervisor.py")


def taken_over(identity: Identity, limits: Limits, handover_fd: int, arguments: tuple[str, ...]) -> list[str]:
    command = command_of(identity, limits, handover_fd, arguments)
    if identity.uid != uid:
        return command
    return [*command[:5], str(DECEIVER), str(handover_fd), lies]


user_process.command_of = taken_over
sys.exit(main(sys.argv[3:]))
