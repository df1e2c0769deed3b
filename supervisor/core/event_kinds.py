"""Which kinds of events are there: how much does each matter, what does it mean, and what is there to do?

The reference of events in the docs is made of this. `holdfast events` shows an event's kind and its own sentence.
"""

from __future__ import annotations

import enum

import msgspec


class Weight(enum.IntEnum):
    """How much an event matters to people: is it for the files alone, news, a fault, or the end of the job?"""

    # A healthy run goes through it too, or something better follows: a rank that was found to be silent may only wait
    # for another, and hang_explained says which one hangs, and where the others stand. It stands in the journal and in
    # the log files.
    ROUTINE = 0
    NEWS = 1
    FAULT = 2
    LOSS = 3  # the job has failed


class Kind(msgspec.Struct, frozen=True):
    """`remedy` "": there is nothing to do."""

    weight: Weight
    meaning: str
    remedy: str = ""


_ROUTINE, _NEWS, _FAULT, _LOSS = Weight.ROUTINE, Weight.NEWS, Weight.FAULT, Weight.LOSS

_JOB_CYCLES = {
    "job_submitted": Kind(_ROUTINE, "The supervisor has taken the job."),
    "cycle_started": Kind(_ROUTINE, "A new attempt begins: its number, its ranks, its world size."),
    "worker_started": Kind(_ROUTINE, "The process of a rank has started."),
    "workers_started": Kind(_ROUTINE, "All ranks of the cycle have started."),
    "worker_exited": Kind(_ROUTINE, "A rank has ended without a fault of its own, or because it was asked to."),
    "workers_stopping": Kind(_ROUTINE, "The ranks of the cycle get their signal, with the grace period."),
    "workers_stopped": Kind(_ROUTINE, "Nothing of the cycle is left."),
    "stop_requested": Kind(_NEWS, "Somebody has asked for the job's end."),
    "job_succeeded": Kind(_ROUTINE, "All ranks have ended with 0."),
    "job_failed": Kind(
        _LOSS,
        "The job has failed for good, and why.",
        "`holdfast report JOB` and `holdfast logs JOB` show what led to it.",
    ),
    "job_stopped": Kind(_NEWS, "The job has ended because somebody asked for it."),
    "supervisor_returned": Kind(
        _NEWS,
        "The supervisor was away and has taken the job back; the events of the meantime follow.",
        "Nothing was lost; find out why it went: `journalctl -u holdfast`.",
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
        "The process that starts the workers has ended unexpectedly; its workers end, too.",
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
    "fault_folded": Kind(_NEWS, "A fault belongs to the restart that is under way; it takes nothing from the budget."),
    "fault_tolerated": Kind(_NEWS, "A fault is tolerated by the job's policy; nothing restarts."),
    "progress_unknown": Kind(
        _NEWS,
        "It is not known whether the job makes progress, so nothing is decided by it.",
        "Check the path of `--ft-checkpoint-iteration-file`.",
    ),
    "root_cause_found": Kind(_NEWS, "Another failure came before the one that was seen first."),
    "running_again": Kind(_NEWS, "All ranks run again after a fault, and how long that took."),
    "defect_met": Kind(
        _FAULT,
        "Holdfast hit a defect of its own; the job goes on where it can.",
        "Please report it with the lines of the supervisor's log.",
    ),
}
_HANGS = {
    "hang_detected": Kind(
        _ROUTINE,
        "A rank has exceeded a limit. No signal has been sent yet: all stacks are taken first.",
        "Read hang_explained, which follows.",
    ),
    "hang_explained": Kind(
        _FAULT,
        "The verdict about all ranks: which one holds the others up, and where they stand.",
        "The page on hangs says what each verdict asks for.",
    ),
    "hang_ended": Kind(
        _NEWS,
        "A rank that hung has gone on, or has ended, before it was signalled.",
        "If it happens often, the limit is too short.",
    ),
    "stacks_collected": Kind(_ROUTINE, "The stacks of all ranks, equal ones together, the odd ones first."),
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
    "straggler_gone": Kind(_NEWS, "It is as fast as the others again, or no longer measured."),
    "limits_calculated": Kind(_ROUTINE, "The ranks have calculated new limits from what they measured."),
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
        "A node that wanted to join disagrees with the others about the job; it alone ends.",
        "Give all nodes the same command: the reason names both values.",
    ),
    "node_lost": Kind(
        _NEWS,
        "A node has fallen silent, or its connection was cut. Its ranks count as lost.",
        "Look at that node's power, network and kernel log. The job goes on if a spare or a smaller world permits it.",
    ),
    "node_returned": Kind(_NEWS, "A node that was lost, or whose supervisor was away, is back."),
    "node_succeeded": Kind(_NEWS, "All ranks of a node have ended with 0, while other nodes still run."),
    "node_cordoned": Kind(
        _NEWS,
        "A node takes no new jobs, and is left out of the next cycle.",
        "`holdfast uncordon NODE` undoes it.",
    ),
    "node_uncordoned": Kind(_NEWS, "The node takes jobs again."),
    "leader_changed": Kind(_NEWS, "Another node leads the job now; the cycle goes on."),
    "leader_left_out": Kind(
        _NEWS,
        "The node that leads may not run ranks itself, as the reason says; it only led.",
        "Mend or replace that node.",
    ),
    "spare_failed": Kind(
        _NEWS,
        "A spare node has failed; the running ranks are not touched.",
        "Replace the spare before it is needed.",
    ),
    "clocks_differ": Kind(
        _NEWS,
        "The clock of a node is off, and with it the times of its events.",
        "Set the nodes' clocks by NTP or chrony.",
    ),
    "events_missing": Kind(
        _NEWS,
        "Some events of another node did not reach the leader in time.",
        "They are in that node's own journal.",
    ),
    "node_checked": Kind(_ROUTINE, "The node's checks before a cycle, with the verdict of each."),
    "node_check_changed": Kind(
        _NEWS,
        "A check has another verdict than before, between two cycles.",
        "If it is unhealthy, the next cycle leaves the node out; look at the reason.",
    ),
    "node_unhealthy": Kind(
        _FAULT,
        "A check says that the node is not fit for ranks.",
        "Mend what the reason names, then start the node's part again.",
    ),
    "node_suspect": Kind(
        _FAULT,
        "Something of the node looks wrong, but it is not excluded for that alone.",
        "Look at the node when there is time; `holdfast nodes` shows what was seen.",
    ),
    "node_suspected": Kind(
        _NEWS,
        "Faults of the job happen on this node more often than on the others.",
        "Check that node's hardware, or cordon it.",
    ),
    "node_cleared": Kind(_NEWS, "What had made the node suspect is no longer seen."),
}
_GPU_MEMORY_AND_BINDING = {
    "gpu_memory_free": Kind(_ROUTINE, "The memory of the job's GPUs is free; the new workers start."),
    "gpu_memory_held": Kind(
        _NEWS,
        "The restart waits, since something holds memory of the job's GPUs.",
        "The reason names the process.",
    ),
    "gpu_memory_not_freed": Kind(
        _FAULT,
        "GPU memory was not freed in time; the restart goes on.",
        "End the process that the reason names, or look at the driver.",
    ),
    "gpu_memory_unknown": Kind(
        _NEWS,
        "GPU memory is not waited for, since nobody can say how much is used.",
        "Install nvidia-ml-py and the driver's library.",
    ),
    "gpu_holder_killed": Kind(_NEWS, "A process that the job left behind held GPU memory, and was ended."),
    "workers_bound": Kind(_ROUTINE, "The workers are bound to CPUs and memory near their GPUs."),
    "workers_not_bound": Kind(_NEWS, "The workers run unbound.", "The reason says what is missing."),
}
_WRAPPED_CALLS = {
    "call_entered": Kind(_ROUTINE, "All ranks have entered a wrapped call."),
    "call_committed": Kind(_ROUTINE, "All ranks have returned from the wrapped function; nothing can undo it."),
    "call_refused": Kind(
        _FAULT,
        "A rank could not enter a wrapped call.",
        "The reason names the values that differ, or what the rank has to do.",
    ),
    "call_rebuilt": Kind(_NEWS, "A supervisor that came back has put together a wrapped call from what its ranks say."),
    "call_lost": Kind(
        _FAULT,
        "The wrapped call can't go on; all ranks raise the reason.",
        "A new cycle follows where the budget permits.",
    ),
    "iteration_interrupted": Kind(_FAULT, "A fault interrupts the wrapped function on all ranks."),
    "iteration_restarted": Kind(
        _NEWS,
        "The wrapped function is called again, on how many ranks, and how long that took.",
    ),
    "iteration_delayed": Kind(
        _NEWS,
        "Several iterations in a row have failed; the next one waits.",
        "Mend the cause: it is the same each time.",
    ),
    "hard_timeout_reached": Kind(
        _FAULT,
        "A rank was silent for its hard timeout, and is ended.",
        "The stacks show where it stood.",
    ),
    "rank_lost_in_call": Kind(_ROUTINE, "The process of a rank has ended in a wrapped call; the others go on."),
    "rank_left_call": Kind(_ROUTINE, "A rank has left a wrapped call, as its health check or an exception wanted."),
    "rank_discarded": Kind(_ROUTINE, "A rank has left an iteration by its own decision, and has no number in it."),
    "rank_replaced": Kind(_NEWS, "A new process takes the place of a rank that was lost."),
    "replacement_waits": Kind(_ROUTINE, "The new process of a lost rank waits for the next iteration."),
    "replacement_late": Kind(_FAULT, "The new process of a rank did not come in time; the others go on without it."),
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
        "What the script imports is loaded in advance from now on, so that restarts are faster.",
    ),
    "preload_lost": Kind(
        _NEWS,
        "Something that could be loaded in advance is not.",
        "The reason names the module and the remedy; see the page on loading ahead.",
    ),
    "output_dropped": Kind(
        _NEWS,
        "Output of a rank was not kept, and how much.",
        "Look at the disk that the reason names, or print less.",
    ),
    "log_server_trouble": Kind(
        _NEWS,
        "A part of the job's log server was lost or can't write; the ranks go on.",
        "Look at the folder and the node that the reason names.",
    ),
    "cycle_log_closed": Kind(_ROUTINE, "The log of a cycle is complete: its path, size and lost lines."),
    "cycle_attributed": Kind(
        _NEWS,
        "What the attribution service says about a cycle: why it ended, and whether another try is worth it.",
        "Mend the cause if the advice is STOP; `--ft-attribution-stop-action no-restart` ends the job then.",
    ),
    "attribution_unavailable": Kind(
        _FAULT,
        "The attribution service can't be asked; the job goes on without it. Reported once for each job.",
        "Look at the address, or at the log of the job's own service (`*_attribution.log`).",
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
