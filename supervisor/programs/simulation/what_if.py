"""How does a job fare on a cluster whose nodes fail at a given rate? Simulates it with the production coordinator.

The real machine decides on rounds, placement, spares, the restart policy and the ends of jobs. Its surroundings are
modelled: nodes answer at once, ranks start and load for as long as the scenario says, and nodes fail at random.
"""

from __future__ import annotations

import random
from collections import deque

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import coordinator, job_termination
from supervisor.core.facts import JobRules, NodeFacts, RendezvousRules, RestartRules
from supervisor.programs.simulation.scenario import Life, Scenario
from supervisor.programs.simulation.simulated_timeline import Alarm, Timeline
from supervisor.programs.simulation.time_accounting import Spent, TimeAccounting

JOB = "job"


def simulate(scenario: Scenario, *, seed: int) -> Life:
    """Returns one simulated life; the same scenario and seed give the same one."""
    return _Play(scenario, seed).run()


class _Play:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._random = random.Random(seed)
        self._timeline = Timeline()
        self._time = TimeAccounting(scenario)
        self._names = tuple(f"node{number:05}" for number in range(scenario.nodes + scenario.spares))
        self._away: set[str] = set()
        self._state = coordinator.initial_state(JOB)
        self._alarm = Alarm(
            self._timeline,
            lambda: coordinator.next_deadline_s(self._state),
            lambda: self._tell(cluster.DeadlineReached()),
        )
        self._reports: deque[cluster.Event] = deque()
        self._is_stepping = False
        self._part: frozenset[str] = frozenset()  # the nodes of the running cycle
        self._starting: dict[str, None] = {}  # nodes that were ordered to start the next one
        self._job = 0  # what is planned for one job concerns no later one
        self._cycle = -1
        self._is_hit = False  # a fault of this cycle is known or will be
        self._is_queued = False  # the job has ended, and there are too few nodes to start it again

    def run(self) -> Life:
        end_s = self._scenario.duration_s
        self._submit()
        self._plan_fault()
        while (next_s := self._timeline.next_s) is not None and next_s < end_s:
            self._timeline.happen()
        return self._time.close(end_s)

    # --- the job

    def _rules(self, number: int) -> JobRules:
        scenario = self._scenario
        return JobRules(
            JOB,
            scenario.ranks_per_node,
            restart=RestartRules(max_restarts=scenario.max_restarts, min_nodes=scenario.nodes),
            rendezvous=RendezvousRules(
                max_nodes=scenario.nodes + scenario.spares, join_timeout_s=scenario.join_timeout_s
            ),
            facts=NodeFacts(infrastructure_rank=number),
        )

    def _submit(self) -> None:
        self._state = coordinator.initial_state(JOB)
        self._job += 1
        self._cycle, self._part, self._is_hit = -1, frozenset(), False
        self._time.spend(self._timeline.now_s, Spent.WAITING)
        for number, name in enumerate(self._names):
            if name not in self._away:
                self._join(name, number)

    def _join(self, name: str, number: int) -> None:
        self._tell(cluster.JobOpened(name, self._rules(number)))
        self._tell(cluster.NodeJoined(name, -1))

    def _tell(self, report: cluster.Event) -> None:
        self._reports.append(report)
        if self._is_stepping:
            return
        self._is_stepping, was_over = True, job_termination.is_over(self._state)
        while self._reports:
            jitter = self._random.random()
            event, now_s = self._reports.popleft(), self._timeline.now_s
            self._state, actions = coordinator.step(self._state, event, now_s=now_s, jitter=jitter)
            for action in actions:
                if isinstance(action, cluster.Send) and action.node not in self._away:
                    self._obey(action.node, action.order)
        self._is_stepping = False
        if not job_termination.is_over(self._state):
            self._alarm.reset()
        elif not was_over:
            self._end_job()

    def _obey(self, name: str, order: orders.Order) -> None:
        match order:
            case orders.StartCycle():
                self._start(name, order)
            case orders.JoinAgain():
                self._reports.append(cluster.NodeJoined(name, self._cycle))
                self._time.spend(self._timeline.now_s, Spent.WAITING)
            case orders.WindDown():
                self._time.spend(self._timeline.now_s, Spent.WAITING)
                self._reports.append(cluster.NodeStopped(name, all_succeeded=False))
            case orders.Conclude(verdict):
                self._time.ended(verdict.reason)
                self._reports.append(cluster.VerdictTaken(name))
            case _:
                pass  # Modelled nodes serve no store, and their hangs need no evidence.

    def _end_job(self) -> None:
        self._part = frozenset()
        self._time.spend(self._timeline.now_s, Spent.REQUEUED)
        self._timeline.after(self._scenario.requeue_s, self._submit_again)

    def _submit_again(self) -> None:
        """Starts the job again once the scheduler has the nodes for it."""
        self._is_queued = len(self._names) - len(self._away) < self._scenario.nodes
        if not self._is_queued:
            self._time.jobs += 1
            self._submit()

    # --- a cycle

    def _start(self, name: str, order: orders.StartCycle) -> None:
        if order.assignment.cycle != self._cycle:
            self._cycle, self._starting = order.assignment.cycle, {}
        self._starting[name] = None
        if len(self._starting) < order.assignment.group_world_size:
            return
        part, job, cycle = frozenset(self._starting), self._job, self._cycle
        if self._part:
            self._time.spares_used += len(part - self._part)
        if cycle:
            self._time.restarts += 1
        self._time.units_used(order.restarts_used)
        self._part, self._is_hit = part, False
        scenario = self._scenario
        self._time.spend(self._timeline.now_s, Spent.STARTING)
        starts_s = scenario.restart_s if cycle else scenario.cold_start_s
        self._timeline.after(starts_s + scenario.load_s, lambda: self._train(job, cycle))

    def _train(self, job: int, cycle: int) -> None:
        if self._part and (job, cycle) == (self._job, self._cycle) and not self._is_hit:
            self._time.spend(self._timeline.now_s, Spent.TRAINING)

    # --- faults

    def _plan_fault(self) -> None:
        """Plans a fault of any node. Nodes that are away have none, which keeps the rate right."""
        rate = len(self._names) / self._scenario.mtbf_s
        self._timeline.after(self._random.expovariate(rate), self._strike)

    def _strike(self) -> None:
        self._plan_fault()
        number = self._random.randrange(len(self._names))
        name, kind = self._names[number], self._random.random()
        if name in self._away:
            return
        scenario = self._scenario
        if kind < scenario.lost_share:
            self._lose(name, number)
        elif name in self._part:
            is_hang = kind < scenario.lost_share + scenario.hang_share
            self._hit()
            job, cycle, reason = self._job, self._cycle, f"a rank of {name} {'hangs' if is_hang else 'has failed'}"
            delay_s = scenario.hang_timeout_s if is_hang else 0.0
            self._timeline.after(delay_s, lambda: self._fail(name, job, cycle, reason))

    def _hit(self) -> None:
        """Stops training at the first fault of a cycle, whether it is known or not."""
        self._time.faults += 1
        if not self._is_hit:
            self._is_hit = True
            self._time.spend(self._timeline.now_s, Spent.UNNOTICED)

    def _fail(self, name: str, job: int, cycle: int, reason: str) -> None:
        if self._part and (job, cycle) == (self._job, self._cycle) and name not in self._away:
            self._tell(cluster.NodeFailed(name, cycle, reason))

    def _lose(self, name: str, number: int) -> None:
        if name in self._part:
            self._hit()
        self._away.add(name)
        self._time.away(len(self._away))
        scenario = self._scenario
        self._timeline.after(scenario.notice_loss_s, lambda: self._notice(name))
        self._timeline.after(max(scenario.repair_s, scenario.notice_loss_s), lambda: self._come_back(name, number))

    def _notice(self, name: str) -> None:
        self._tell(cluster.NodeLost(name, f"node {name} is lost"))

    def _come_back(self, name: str, number: int) -> None:
        self._away.discard(name)
        if self._is_queued:
            self._submit_again()
        elif not job_termination.is_over(self._state):
            self._join(name, number)
