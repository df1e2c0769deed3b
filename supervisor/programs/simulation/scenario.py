"""What can a user ask `holdfast simulate`, and what is assumed by default?"""

from __future__ import annotations

import msgspec

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


class Scenario(msgspec.Struct, frozen=True):
    """A job on a cluster, and how often and in which ways its nodes fail."""

    nodes: int  # nodes that train
    spares: int = 0  # additional hot spares
    ranks_per_node: int = 8
    duration_s: float = 30 * DAY_S
    mtbf_s: float = 250 * DAY_S  # mean time between the faults of one node
    lost_share: float = 0.5  # share of the faults that take the node away
    hang_share: float = 0.1  # share of the faults that leave its ranks silent; the rest end a process
    repair_s: float = DAY_S  # until a lost node is back, as a spare
    checkpoint_interval_s: float = 30 * MINUTE_S
    checkpoint_pause_s: float = 10.0  # training stops for each checkpoint
    load_s: float = 120.0  # from the start of the ranks to the first step: model, data, checkpoint
    cold_start_s: float = 1.41  # of the first ranks (docs/benchmarks.json, cold_start_torch)
    restart_s: float = 0.085  # from a known fault to new ranks (docs/benchmarks.json, restart_torch)
    notice_loss_s: float = 5.0  # node_loss_detection.LOST_S
    hang_timeout_s: float = 2700.0  # --ft-rank-heartbeat-timeout
    max_restarts: int = 1_000_000
    join_timeout_s: float = 900.0
    requeue_s: float = 300.0  # from the end of a job to its next start by the scheduler


class Life(msgspec.Struct, frozen=True):
    """How a simulated job's time was spent, in node-independent seconds that add up to the duration."""

    useful_s: float = 0.0  # steps that count
    redone_s: float = 0.0  # steps since the last checkpoint, lost with a fault
    checkpoint_s: float = 0.0
    unnoticed_s: float = 0.0  # from a fault until it is known
    starting_s: float = 0.0  # ranks start, load and come to their first step
    waiting_s: float = 0.0  # too few nodes, or the restart policy delays
    requeued_s: float = 0.0  # no job is running: the last one has ended
    faults: int = 0  # faults that struck the job
    restarts: int = 0  # cycles after the first of each job
    jobs: int = 1
    away_max: int = 0  # most nodes away at once
    spares_used: int = 0  # how often a spare stepped in
    units: int = 0  # units used of the restart budget
    last_end: str = ""  # why the most recently ended job ended
    spans: tuple[tuple[float, float, str], ...] = ()  # from, to, what it was spent on: for the picture

    @property
    def goodput(self) -> float:
        """The share of the time spent on steps that count."""
        whole_s = (
            self.useful_s + self.redone_s + self.checkpoint_s + self.unnoticed_s + self.starting_s + self.waiting_s
            + self.requeued_s
        )  # fmt: skip
        return self.useful_s / whole_s if whole_s else 0.0
