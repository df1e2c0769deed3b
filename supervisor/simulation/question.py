"""What does a user ask of `holdfast simulate`, and what is assumed where they say nothing?"""

from __future__ import annotations

import msgspec

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


class Question(msgspec.Struct, frozen=True):
    """A job on a cluster, and how often and in which ways its nodes fail."""

    nodes: int  # that train
    spares: int = 0  # hot spares beside them
    ranks_per_node: int = 8
    duration_s: float = 30 * DAY_S
    mtbf_s: float = 250 * DAY_S  # of one node: the mean time between its faults
    lost_share: float = 0.5  # of the faults take the node away
    hang_share: float = 0.1  # of the faults leave its ranks silent; what remains ends a process
    repair_s: float = DAY_S  # until a lost node is back, as a spare
    checkpoint_interval_s: float = 30 * MINUTE_S
    checkpoint_pause_s: float = 10.0  # training stands still for each checkpoint
    load_s: float = 120.0  # from the start of the ranks to the first step: model, data, checkpoint
    cold_start_s: float = 1.41  # of the first ranks (docs/benchmarks.json, cold_start_torch)
    restart_s: float = 0.085  # from a fault that is known to new ranks (docs/benchmarks.json, restart_torch)
    notice_loss_s: float = 5.0  # cluster_server.LOST_S
    hang_timeout_s: float = 2700.0  # --ft-rank-heartbeat-timeout
    max_restarts: int = 1_000_000
    join_timeout_s: float = 900.0
    requeue_s: float = 300.0  # from the end of a job to its next start by the scheduler


class Life(msgspec.Struct, frozen=True):
    """One simulated job's time: what it was spent on, in node-independent seconds that add up to the duration."""

    useful_s: float = 0.0  # steps that count
    redone_s: float = 0.0  # steps since the last checkpoint, lost with a fault
    checkpoint_s: float = 0.0
    unnoticed_s: float = 0.0  # from a fault to the moment at which it is known
    starting_s: float = 0.0  # ranks start, load and come to their first step
    waiting_s: float = 0.0  # too few nodes, or the restart policy delays
    requeued_s: float = 0.0  # no job: the last one has ended
    faults: int = 0  # that have struck the job
    restarts: int = 0  # cycles after the first of each job
    jobs: int = 1
    away_max: int = 0  # nodes that were away at once
    spares_used: int = 0  # times that a spare stepped in
    units: int = 0  # of the restart budget
    last_end: str = ""  # why the last job ended that did
    spans: tuple[tuple[float, float, str], ...] = ()  # from, to, what it was spent on: for the picture

    @property
    def goodput(self) -> float:
        """The share of the time that went into steps that count."""
        whole_s = (
            self.useful_s + self.redone_s + self.checkpoint_s + self.unnoticed_s + self.starting_s + self.waiting_s
            + self.requeued_s
        )  # fmt: skip
        return self.useful_s / whole_s if whole_s else 0.0
