"""Which kinds of events are there, how much does each matter, what does it mean, and what should people do?

The event reference in the docs is generated from this. `holdfast events` shows an event's kind and its own sentence.
"""

from __future__ import annotations

import enum

import msgspec


class Weight(enum.IntEnum):
    """How much an event matters to people: for the files only, news, a fault, or the end of the job."""

    # Also occurs in a healthy run, or a more telling event follows: a silent rank may only be waiting for another, and
    # hang_explained then says which one hangs and where the others are. It goes only to the journal and the log files.
    ROUTINE = 0
    NEWS = 1
    FAULT = 2
    LOSS = 3  # the job has failed


class Kind(msgspec.Struct, frozen=True):
    """A kind of event. `remedy` "": nothing needs to be done."""

    weight: Weight
    meaning: str
    remedy: str = ""


_ROUTINE, _NEWS, _FAULT, _LOSS = Weight.ROUTINE, Weight.NEWS, Weight.FAULT, Weight.LOSS

_JOB_CYCLES = {
    "job_submitted": Kind(_ROUTINE, "The supervisor has taken the job."),
    "cycle_started": Kind(_ROUTINE, "A new attempt begins: its number, its ranks, its world size."),
    "worker_started": Kind(_ROUTINE, "The process of a rank has started."),
    "workers_started": Kind(_ROUTINE, "All ranks of the cycle have started."),
    "worker_exited": Kind(_ROUTINE, "A rank has ended without its own fault, or because it was ordered to."),
    "workers_stopping": Kind(_ROUTINE, "The ranks of the cycle are signalled; the grace period begins."),
    "workers_stopped": Kind(_ROUTINE, "No process of the cycle is left."),
    "stop_requested": Kind(_NEWS, "Somebody has requested the end of the job."),
    "stop_dropped": Kind(
        _FAULT,
        "A node without ranks was asked to stop the job, but no leader heard it in time, so the job goes on.",
        "If it is still to end: `holdfast stop JOB`.",
    ),
    "ranks_awaited": Kind(
        _NEWS,
        "Ranks that are to end still run: how long they have, and what they do, as far as it can be seen.",
        "Nothing, if they save. A thread that is not a daemon, or a child process, keeps a rank alive.",
    ),
    "job_succeeded": Kind(_ROUTINE, "All ranks have ended with 0."),
    "job_failed": Kind(
        _LOSS,
        "The job has failed for good; the reason says why.",
        "`holdfast report JOB` and `holdfast logs JOB` show what led to it.",
    ),
    "job_stopped": Kind(_NEWS, "The job has ended on request."),
    "supervisor_returned": Kind(
        _NEWS,
        "The supervisor was away and has taken the job back; it reports what happened in between.",
        "Nothing was lost; find out why it ended: `journalctl -u holdfast`.",
    ),
}
_FAULTS_AND_RESTARTS = {
    "worker_failed": Kind(
        _FAULT,
        "A rank has failed by itself: an exit code, a signal or an exception.",
        "`holdfast logs JOB --rank N` shows its last lines.",
    ),
    "spawn_failed": Kind(_FAULT, "A worker could not be started.", "The reason names the limit or the file."),
    "store_failed": Kind(
        _FAULT,
        "The TCPStore of the cycle could not be served.",
        "Look at the address, the port and the limits that the reason names.",
    ),
    "spawner_lost": Kind(
        _FAULT,
        "The process that starts the workers has ended unexpectedly; its workers end, too, and what they printed last "
        "may be lost.",
        "If it repeats, look at memory limits and at the kernel log for out-of-memory kills.",
    ),
    "spawner_killed": Kind(
        _NEWS,
        "The process that starts the workers did not answer, and was replaced.",
        "If it repeats, look at what the script's modules do when they are imported.",
    ),
    "workers_stuck": Kind(
        _FAULT,
        "Processes of the cycle survive SIGKILL, mostly in the kernel (state D).",
        "Look at the storage or driver that the reason names; the node may need a reboot.",
    ),
    "restart_decided": Kind(_NEWS, "The job restarts: why, when, and what that takes from the budget."),
    "restart_requested": Kind(_NEWS, "Somebody, or a rank, has asked for a restart."),
    "restart_refused": Kind(_NEWS, "A restart was asked for and is not possible now.", "The reason says why."),
    "control_requested": Kind(_NEWS, "A rank has asked for something through the workload control API."),
    "deadlock_ended": Kind(
        _NEWS,
        "After a fault, all ranks that are left wait in collectives with ranks that are gone: they are ended at once.",
        "A handler for SIGTERM cannot save there; save at intervals.",
    ),
    "fault_folded": Kind(
        _NEWS, "A fault belongs to the restart that is in progress; it takes nothing from the budget."
    ),
    "fault_tolerated": Kind(_NEWS, "A fault is tolerated by the job's policy; nothing restarts."),
    "progress_unknown": Kind(
        _NEWS,
        "Holdfast cannot tell whether the job makes progress, so progress has no effect on decisions.",
        "Check the path of `--ft-checkpoint-iteration-file`.",
    ),
    "root_cause_found": Kind(_NEWS, "Another failure happened before the one that was detected first."),
    "running_again": Kind(
        _NEWS, "The processes of all ranks run again after a fault, and how long that took; see script_seen."
    ),
    "script_seen": Kind(
        _NEWS,
        "The first sign of the script after a restart (output, or its client), and how long after the fault it came.",
        "If it comes long after running_again, the script loads for long: see the page on what is loaded ahead.",
    ),
    "defect_met": Kind(
        _FAULT,
        "Holdfast has met a defect of its own; the job continues if possible.",
        "Please report it with the supervisor's log.",
    ),
}
_HANGS = {
    "hang_detected": Kind(
        _ROUTINE,
        "A rank has exceeded a limit. No process is signalled before all stacks are taken.",
        "Read hang_explained, which follows.",
    ),
    "hang_explained": Kind(
        _FAULT,
        "The verdict about all ranks: which rank blocks the others, and where each rank stands.",
        "The page on hangs says what to do about each verdict.",
    ),
    "hang_ended": Kind(
        _NEWS,
        "A rank that hung has continued or ended before it was signalled.",
        "If it happens often, the limit is too short.",
    ),
    "stacks_collected": Kind(_ROUTINE, "The stacks of all ranks: equal stacks together, the odd ones first."),
    "stacks_missing": Kind(
        _NEWS,
        "The stacks of some ranks could not be taken.",
        "Install py-spy, and allow ptrace in the container.",
    ),
    "straggler_found": Kind(
        _NEWS,
        "A rank or a node is slower than the others in a section, by more than noise.",
        "Compare that node's clocks, temperature and neighbours; see the page on stragglers.",
    ),
    "straggler_gone": Kind(_NEWS, "The rank or node is as fast as the others again, or is no longer measured."),
    "rank_stopped": Kind(
        _NEWS,
        "A signal has stopped the process of a rank; the others will wait for it.",
        "Find out what stops processes: a shell's job control, a batch system's suspend.",
    ),
    "rank_continued": Kind(_NEWS, "A rank that was stopped goes on, and after how long."),
    "limit_not_armed": Kind(
        _NEWS,
        "A limit that was set finds no hang yet, since no rank has done what it counts from. Reported once per job.",
        "Call what the reason names, or leave the limit out.",
    ),
    "limits_calculated": Kind(_ROUTINE, "The ranks have calculated new limits from their measurements."),
    "checkpoints_measured": Kind(
        _ROUTINE,
        "How many checkpoints the ranks have written in this cycle, and how long one takes. Reported each time that "
        "the count has doubled.",
        "The report says what they cost, and which interval would cost least.",
    ),
    "main_threads_measured": Kind(
        _ROUTINE,
        "The longest time in which a main thread of this node executed no Python code in a cycle, and then went on "
        "(--ft-auto-heartbeat-timeout).",
        "If it comes near the limit, choose a longer one: five times the longest leaves room.",
    ),
}
_NODES = {
    "rendezvous_waits": Kind(
        _NEWS,
        "A round waits for nodes, or for a whole segment of them.",
        "If it lasts, start the missing nodes that the reason names; the round stays open until the join timeout.",
    ),
    "nodes_placed": Kind(_NEWS, "The round is complete: which node gets which ranks, and which nodes are spares."),
    "node_refused": Kind(
        _NEWS,
        "A node takes no part in the job, as the reason says: it has other settings or the rank of another node, "
        "cannot run the command, has ended its part by itself, or belongs to an earlier run. Only this node ends.",
        "Remove the cause on that node and start it again. If it has ended its part by itself, its own log says why.",
    ),
    "node_lost": Kind(
        _NEWS,
        "A node has fallen silent, or its connection was cut. Its ranks count as lost.",
        "Check that node's power, network and log. If a spare or a smaller world permits it, the job continues.",
    ),
    "node_returned": Kind(_NEWS, "A node that was lost, or whose supervisor was away, is back."),
    "node_succeeded": Kind(_NEWS, "All ranks of a node have ended with 0, while other nodes still run."),
    "node_cordoned": Kind(
        _NEWS,
        "A node takes no new jobs and no part in the next cycle.",
        "`holdfast uncordon NODE` undoes it.",
    ),
    "leave_requested": Kind(_NEWS, "Somebody wants this node out of the job, which goes on."),
    "leave_refused": Kind(
        _FAULT,
        "A node cannot leave the job, as the reason says; nothing has changed.",
        "Start a spare node, or end the job: `holdfast stop JOB`.",
    ),
    "node_leaves": Kind(_NEWS, "A node with ranks leaves the job, which restarts without it and uses no restart."),
    "node_left": Kind(_NEWS, "A node has left the job as asked; the job goes on."),
    "node_uncordoned": Kind(_NEWS, "The node takes jobs again."),
    "leader_changed": Kind(_NEWS, "Another node leads the job now; the cycle continues."),
    "leader_resigned": Kind(_NEWS, "The leader hears too few nodes; a node that hears more of them leads next."),
    "spare_failed": Kind(
        _NEWS,
        "A spare node has failed; the running ranks are not touched, and no restart is used.",
        "Replace the spare before it is needed.",
    ),
    "clocks_differ": Kind(
        _NEWS,
        "The clock of a node is off, so the times of its events are wrong.",
        "Synchronise the nodes' clocks with NTP or chrony.",
    ),
    "events_missing": Kind(
        _NEWS,
        "Some events of another node did not reach the leader in time.",
        "That node's own journal has them.",
    ),
    "node_checked": Kind(_ROUTINE, "The results of the node's checks before a cycle."),
    "node_check_changed": Kind(
        _NEWS,
        "A check between two cycles has a new verdict.",
        "If it is unhealthy, the next cycle excludes the node; look at the reason.",
    ),
    "node_unhealthy": Kind(
        _FAULT,
        "A check says that the node is not fit for ranks.",
        "Fix what the reason names, then start the job's command on that node again.",
    ),
    "node_suspect": Kind(
        _FAULT,
        "Something on the node looks wrong, but this alone does not exclude it.",
        "Check the node when you have time; `holdfast nodes` shows the finding.",
    ),
    "node_suspected": Kind(
        _NEWS,
        "Faults of the job happen on this node more often than on the others.",
        "Check that node's hardware, or cordon it.",
    ),
    "node_cleared": Kind(_NEWS, "The reason for the suspicion is gone."),
}
_GPU_MEMORY_AND_BINDING = {
    "gpu_memory_free": Kind(_ROUTINE, "The memory of the job's GPUs is free; the new workers start."),
    "gpu_memory_held": Kind(
        _NEWS,
        "The restart waits, since a process holds memory of the job's GPUs.",
        "The reason names the process.",
    ),
    "gpu_memory_not_freed": Kind(
        _FAULT,
        "GPU memory was not freed in time; the restart continues.",
        "End the process that the reason names, or check the driver.",
    ),
    "gpu_memory_unknown": Kind(
        _NEWS,
        "The restart does not wait for GPU memory, since its use cannot be read.",
        "Install nvidia-ml-py and the driver's library.",
    ),
    "gpu_holder_killed": Kind(_NEWS, "A process that the job left behind held GPU memory and was killed."),
    "workers_bound": Kind(_ROUTINE, "The workers are bound to CPUs and memory near their GPUs."),
    "workers_not_bound": Kind(_NEWS, "The workers run unbound.", "The reason says what is missing."),
}
_WRAPPED_CALLS = {
    "call_entered": Kind(_ROUTINE, "All ranks have entered a wrapped call."),
    "call_committed": Kind(_ROUTINE, "All ranks have returned from the wrapped function; nothing can undo it."),
    "call_before_limit": Kind(
        _NEWS,
        "A limit of a monitored rank is shorter than the timeouts of its wrapped call; reported once per job.",
        "Nothing, or raise the limit: a call that the limit interrupts restarts inside the processes first.",
    ),
    "call_rebuilt": Kind(_NEWS, "A supervisor that returned has rebuilt a wrapped call from the reports of its ranks."),
    "call_lost": Kind(
        _FAULT,
        "The wrapped call cannot continue; all ranks raise the reason.",
        "A new cycle follows if the budget permits it.",
    ),
    "iteration_interrupted": Kind(_FAULT, "A fault interrupts the wrapped function on all ranks."),
    "iteration_restarted": Kind(
        _NEWS,
        "The wrapped function is called again; the event says on how many ranks, and how long the restart took.",
    ),
    "iteration_delayed": Kind(
        _NEWS,
        "Several iterations in a row have failed at once; the next one waits.",
        "Fix the cause, which is the same each time.",
    ),
    "hard_timeout_reached": Kind(
        _FAULT,
        "A rank was silent for its hard timeout and is ended.",
        "The stacks show where it stood.",
    ),
    "rank_lost_in_call": Kind(_ROUTINE, "The process of a rank has ended in a wrapped call; the others continue."),
    "rank_left_call": Kind(_ROUTINE, "A rank has left a wrapped call because of its health check or an exception."),
    "rank_discarded": Kind(_ROUTINE, "A rank has left an iteration by its own decision and has no number in it."),
    "rank_replaced": Kind(_NEWS, "A new process takes the place of a rank that was lost."),
    "replacement_waits": Kind(_ROUTINE, "The new process of a lost rank waits for the next iteration."),
    "replacement_late": Kind(
        _FAULT, "The new process of a rank was not ready in time; the others continue without it."
    ),
    "replacement_lost": Kind(
        _FAULT,
        "The new process of a rank has ended before it took part.",
        "`holdfast logs JOB --rank N` shows why.",
    ),
}
_OUTPUT_AND_LOADING_AHEAD = {
    "spawner_ready": Kind(_ROUTINE, "The job's warm interpreter can fork workers."),
    "preload_learned": Kind(
        _ROUTINE,
        "Holdfast loads the script's imports in advance from now on, so restarts are faster.",
    ),
    "preload_lost": Kind(
        _NEWS,
        "A module that could be loaded in advance is not.",
        "The reason names the module and the remedy; see the page on loading ahead.",
    ),
    "output_dropped": Kind(
        _NEWS,
        "Some output of a rank was lost; the event says how much.",
        "Look at the disk that the reason names, or print less.",
    ),
    "log_server_trouble": Kind(
        _NEWS,
        "A part of the job's log server was lost or cannot write; the ranks continue.",
        "Look at the folder and the node that the reason names.",
    ),
    "cycle_log_closed": Kind(_ROUTINE, "The log of a cycle is complete: its path, size and lost lines."),
    "cycle_attributed": Kind(
        _NEWS,
        "The attribution service's verdict on a cycle: why it ended, and whether a restart is worth it.",
        "If the advice is STOP, fix the cause; with `--ft-attribution-stop-action no-restart`, the job ends.",
    ),
    "attribution_unavailable": Kind(
        _FAULT,
        "The attribution service does not answer; the job continues without it. Reported once per job.",
        "Check the address, or the log of the job's own service (`*_attribution.log`).",
    ),
}
THEMES = (
    ("A job and its cycles", _JOB_CYCLES),
    ("Faults and restarts", _FAULTS_AND_RESTARTS),
    ("Hangs and slow ranks", _HANGS),
    ("Nodes", _NODES),
    ("GPU memory and binding", _GPU_MEMORY_AND_BINDING),
    ("Wrapped calls: restart inside the process", _WRAPPED_CALLS),
    ("Output and loading ahead", _OUTPUT_AND_LOADING_AHEAD),
)
KINDS = {name: kind for _, kinds in THEMES for name, kind in kinds.items()}
