"""What are the phases of a job called, and which of them look the same in a picture?"""

from __future__ import annotations

from supervisor.report.timeline.timeline import Outcome, Phase, Trouble

NAMES = {
    Phase.RUNNING: "ranks run",
    Phase.UNNOTICED: "fault not noticed yet",
    Phase.DECIDING: "fault noticed, stacks taken, decision",
    Phase.STOPPING: "workers are stopped",
    Phase.MEETING: "nodes meet, memory is waited for, delays",
    Phase.STARTING: "ranks start",
    Phase.INTERRUPTED: "restart inside the processes",
    Phase.WAITING: "before the first start",
    Phase.ENDING: "after the last work",
}
SHORT = {
    Phase.RUNNING: "run",
    Phase.UNNOTICED: "unnoticed",
    Phase.DECIDING: "decide",
    Phase.STOPPING: "stop",
    Phase.MEETING: "meet",
    Phase.STARTING: "start",
    Phase.INTERRUPTED: "restart inside",
    Phase.WAITING: "wait",
    Phase.ENDING: "end",
}
# The class of a bar: its colour and height. Phases that a picture need not distinguish share one.
LOOKS = {
    Phase.RUNNING: "run",
    Phase.UNNOTICED: "unnoticed",
    Phase.DECIDING: "stop",
    Phase.STOPPING: "stop",
    Phase.MEETING: "idle",
    Phase.STARTING: "start",
    Phase.INTERRUPTED: "inside",
    Phase.WAITING: "idle",
    Phase.ENDING: "idle",
}
LEGEND = (
    ("run", "ranks run"),
    ("unnoticed", "silent, not noticed yet"),
    ("stop", "noticed, being stopped"),
    ("start", "starting"),
    ("inside", "restart inside the processes"),
    ("idle", "nothing runs"),
)
TROUBLES = {
    Trouble.HANG: "hang",
    Trouble.FAILURE: "failed process",
    Trouble.EXCEPTION: "exception",
    Trouble.NODE_LOST: "lost node",
    Trouble.REQUESTED: "requested",
    Trouble.OTHER: "other fault",
}
OUTCOMES = {
    Outcome.RESTARTED: "all workers restarted",
    Outcome.INSIDE: "restarted inside the processes",
    Outcome.TOLERATED: "tolerated",
    Outcome.ENDED_JOB: "ended the job",
    Outcome.OPEN: "not over yet",
}
