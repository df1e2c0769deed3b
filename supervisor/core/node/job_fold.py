"""What follows in one job from one event? Folds the machines of a job into one step.

The machines are its life (job.py), its workers (worker_group.py), its spawner's debts (spawner_deadlines.py), the
response to hangs (hang_response.py), its ranks' wrapped call (local_call.py), what is noticed without a word from the
script (ranks_without_client.py), and for each rank a monitor (rank_monitor.py) and a watch on its call (call_watch.py).
An event goes to the machines that it concerns; messages between them are passed on at once, until actions are left.
"""

from __future__ import annotations

import signal as signals
from collections import deque
from typing import assert_never, cast, get_args

import msgspec

from supervisor.core import orders, worker_messages
from supervisor.core.cluster.cluster_messages import StacksTaken, StacksWanted
from supervisor.core.facts import HangLimits, JobEvent
from supervisor.core.node import (
    call_limits,
    call_watch,
    hang_response,
    job,
    job_commands,
    local_call,
    node_messages,
    rank_monitor,
    ranks_without_client,
    spawner_deadlines,
    worker_group,
)
from supervisor.core.node.hang_facts import with_node_facts
from supervisor.core.node.job_machines import JobMachines
from supervisor.core.wrapped_calls.call_messages import Interruption

_Told = worker_messages.Order | worker_messages.GroupReport | worker_messages.HangReport
_Inner = _Told | hang_response.RankHung

# Events and actions are looked up by kind: isinstance over so many kinds would cost more than everything else.
_TOLD_KINDS = frozenset(get_args(_Told))
_ASKED_KINDS = frozenset(get_args(spawner_deadlines.Asked))
_OF_SPAWNER = frozenset(get_args(node_messages.SpawnerReport))
_OF_WORKER = frozenset(get_args(node_messages.WorkerReport))
_ONLY_PLAIN = frozenset(get_args(node_messages.PlainReport))
_OF_PLAIN = frozenset(get_args(ranks_without_client.Event))
_OF_CLIENT = frozenset(get_args(node_messages.ClientReport))
_TO_JOB = frozenset(get_args(worker_messages.GroupReport | worker_messages.HangReport)) - {worker_messages.RankExited}
_OfCycle = orders.TakeStacks | orders.ActOnHang | orders.TellMembers | orders.ReplaceRanks | orders.SettleCall
_OF_CYCLE = frozenset(get_args(_OfCycle))


class JobFold:
    """Carries one event, and all that follows from it, through the machines of one job."""

    def __init__(self, machines: JobMachines, now_s: float) -> None:
        self._machines = machines  # node_check_gate.py and gpu_memory_gate.py handle the others
        self._job = machines.job
        self._group = machines.group
        self._hangs = machines.hangs
        self._calls = machines.calls
        self._spawner = machines.spawner
        self._plain = machines.plain
        self._monitors: list[rank_monitor.State] = list(machines.monitors)
        self._watches: list[call_watch.State] = list(machines.watches)
        self._now_s = now_s
        self._inner: deque[_Inner] = deque()
        self.actions: list[node_messages.Action] = []

    def machines(self) -> JobMachines:
        return msgspec.structs.replace(
            self._machines, job=self._job, group=self._group, hangs=self._hangs, calls=self._calls,
            spawner=self._spawner, plain=self._plain, monitors=tuple(self._monitors), watches=tuple(self._watches),
        )  # fmt: skip

    def take(self, event: node_messages.ReportOfJob | node_messages.DeadlineReached) -> None:
        """Takes an event from outside; the caller has checked its cycle."""
        kind = type(event)
        if kind is node_messages.DeadlineReached:
            self._pass_deadlines()
            return
        if spawner_deadlines.is_moot(self._spawner, event):
            return
        if kind in _OF_PLAIN:
            self._to_plain(cast("ranks_without_client.Event", event))
        if kind in _OF_SPAWNER:
            self._to_spawner(of_spawner := cast("node_messages.SpawnerReport", event))
            self._to_job(of_spawner)
        elif kind in _OF_WORKER:
            self._to_spawner(of_worker := cast("node_messages.WorkerReport", event))
            self._take_of_worker(of_worker)
        elif kind in _OF_CLIENT:
            self._take_of_client(cast("node_messages.ClientReport", event))
        elif kind not in _ONLY_PLAIN:
            self._take_else(cast("node_messages.UnsentOfJob", event))
        self._settle()

    def _take_else(self, event: node_messages.UnsentOfJob) -> None:
        match event:
            case node_messages.Ordered(order=order):
                self._obey(order)
            case node_messages.WorkerEndSeen():
                if worker_group.is_alive(self._group, event.local_rank):  # Its report may have come first.
                    self._to_spawner(event)
            case node_messages.FenceMoved(job_id, until_s):
                self.actions.append(node_messages.MoveFence(job_id, until_s))
            case node_messages.StopRequested() | node_messages.LeaveRequested() | node_messages.RestartRequested():
                self._to_job(job_commands.with_running(event, worker_group.workers_of(self._group)))
            case node_messages.ControlRequested() | node_messages.CordonRequested():
                self._to_job(event)
            case node_messages.LimitsCalculated(local_rank=local_rank, limits=limits):
                # Each rank reports for itself: what is known of the others may be older than the agreement.
                self._to_job(event)
                self._to_monitor(local_rank, rank_monitor.LimitsChanged(limits))
            case node_messages.SpawnerBroken(reason=reason):
                self._to_spawner(spawner_deadlines.SpawnerBroken(reason))
            case node_messages.EvidenceCollected(cycle=cycle, evidence=evidence):
                workers, stops = worker_group.workers_of(self._group), self._plain.stops.signals
                taken = StacksTaken(self._job.node, cycle, with_node_facts(evidence, workers, self._hangs, stops))
                self.actions.append(node_messages.TellCoordinator(self._job.rules.job_id, taken))
            case node_messages.SupervisorReturned():
                self._resume()
            case _:
                assert_never(event)

    def _resume(self) -> None:
        """Resumes under a new supervisor: time during which none watched counts against no rank."""
        self._to_spawner(spawner_deadlines.SupervisorReturned())
        for local_rank in range(len(self._monitors)):
            self._to_monitor(local_rank, rank_monitor.PageLost())
            self._to_watch(local_rank, call_watch.PageLost())
            self._to_calls(local_call.ClientLeft(local_rank))

    def _take_of_client(self, event: node_messages.ClientReport) -> None:
        local_rank = event.local_rank
        match event:
            case node_messages.ClientJoined(limits=limits, progress=progress):
                self._to_monitor(local_rank, rank_monitor.ClientJoined(self._limits(limits), progress))
                self._to_watch(local_rank, call_watch.PageLost())
                self._to_calls(local_call.ClientJoined(local_rank))
            case node_messages.ClientLeft():
                self._to_monitor(local_rank, rank_monitor.ClientLeft())
                self._to_watch(local_rank, call_watch.PageLost())
                self._to_calls(local_call.ClientLeft(local_rank))
            case node_messages.ProgressRead(progress=progress):
                self._to_monitor(local_rank, rank_monitor.ProgressRead(progress))
                self._to_watch(local_rank, call_watch.ProgressRead(progress))
                self._tell_shorter_limit(local_rank)
            case node_messages.RankSaid():
                self._to_calls(event)
            case _:
                assert_never(event)

    def _obey(self, order: orders.Order) -> None:
        """Passes the coordinator's order to its machine; an order for another cycle changes nothing."""
        if type(order) in _OF_CYCLE:
            if (of_cycle := cast("_OfCycle", order)).cycle == self._job.cycle:
                self._obey_in_cycle(of_cycle)
            return
        self._to_job(cast("job.Order", order))
        if isinstance(order, orders.Introduce) and self._calls.is_used:
            # For a leader that knows nothing of the call, the ranks report their stage when they reconnect.
            self._to_calls(local_call.LeaderChanged(worker_group.starting(self._group)))
            self.actions.append(node_messages.ReconnectRanks(self._job.rules.job_id, self._job.cycle))

    def _obey_in_cycle(self, order: _OfCycle) -> None:
        match order:
            case orders.TakeStacks(cycle, accused, budget_s, apart_s):
                collect = node_messages.CollectEvidence(self._job.rules.job_id, cycle, budget_s, accused, apart_s)
                self.actions.append(collect)
            case orders.ActOnHang():
                self._to_hangs(hang_response.EvidenceTaken(order.verdict))
                for local_rank in range(len(self._watches)):
                    self._to_watch(local_rank, call_watch.EvidenceCollected())
            case orders.TellMembers() | orders.SettleCall():
                self._to_calls(order)
            case orders.ReplaceRanks(members=members):
                self._respawn(members)
            case _:
                assert_never(order)

    def _pass_deadlines(self) -> None:
        for local_rank in range(len(self._monitors)):
            self._to_monitor(local_rank, rank_monitor.DeadlineReached())
        for local_rank in range(len(self._watches)):
            self._to_watch(local_rank, call_watch.DeadlineReached())
        self._to_calls(local_call.DeadlineReached())
        for take in (self._to_plain, self._to_hangs, self._to_group, self._to_spawner, self._to_job):
            take(node_messages.DeadlineReached())
        self._settle()

    def carry(self, actions: job.Actions) -> None:
        self._sort(actions)
        self._settle()

    def _limits(self, limits: HangLimits) -> HangLimits:
        """Returns the limits: calculated ones override configured ones; the client decides how long warm-up lasts."""
        calculated = self._job.limits
        return msgspec.structs.replace(calculated, warm_up_steps=limits.warm_up_steps) if calculated else limits

    def _settle(self) -> None:
        while self._inner:
            self._pass_on(self._inner.popleft())

    def _pass_on(self, event: _Inner) -> None:
        if type(event) in _TO_JOB:
            self._to_job(cast("worker_messages.GroupReport | worker_messages.HangReport", event))
            return
        match event := cast("worker_messages.Order | worker_messages.RankExited | hang_response.RankHung", event):
            case worker_messages.PrepareWorkers():
                self._monitors = [rank_monitor.initial_state()] * self._job.rules.local_world_size
                self._watches = [call_watch.initial_state()] * self._job.rules.local_world_size
                self._hangs = hang_response.initial_state()
                self._begin_calls()
                self._to_plain(event)
                self._to_group(event)
            case worker_messages.StopWorkers() | worker_messages.KillWorkers() | worker_messages.LoseWorkers():
                self._monitors = [rank_monitor.Gone()] * len(self._monitors)
                self._watches = [call_watch.Gone()] * len(self._watches)
                self._to_calls(local_call.WorkersEnding())
                self._to_hangs(hang_response.WorkersEnding())
                self._to_plain(event)
                self._to_group(event)
            case hang_response.RankHung():
                self._to_hangs(event)
            case worker_messages.RankExited():
                self._to_hangs(event)
                self._to_job(event)
            case _:
                self._to_group(event)

    def _to_spawner(self, event: spawner_deadlines.Event) -> None:
        rules, cycle, now_s = self._job.rules, self._job.cycle, self._now_s
        self._spawner, actions = spawner_deadlines.step(self._spawner, event, now_s=now_s, cycle=cycle, rules=rules)
        for action in actions:
            match action:
                case spawner_deadlines.GiveUp(number, reason):
                    self._to_job(node_messages.SpawnerLost(rules.job_id, number, reason))
                case _:
                    self.actions.append(action)

    def _to_job(self, event: job.Event) -> None:
        self._job, actions = job.step(self._job, event, now_s=self._now_s)
        self._sort(actions)

    def _to_group(self, event: worker_group.Event) -> None:
        self._group, actions = worker_group.step(self._group, event, now_s=self._now_s, rules=self._job.rules)
        self._sort(actions)

    def _to_hangs(self, event: hang_response.Event) -> None:
        self._hangs, actions = hang_response.step(
            self._hangs, event, now_s=self._now_s, cycle=self._job.cycle, rules=self._job.rules
        )
        for action in actions:
            if isinstance(action, hang_response.WantStacks):
                self._want_stacks(action.local_rank, action.noticed)
            else:
                self._sort((action,))

    def _want_stacks(self, local_rank: int, noticed: str = "") -> None:
        """Asks the coordinator for the stacks of all ranks of the job, on all nodes."""
        rules, rank = self._job.rules, self._rank(local_rank)
        wanted = StacksWanted(self._job.node, self._job.cycle, (rank,), rules.evidence_budget_s, noticed)
        self.actions.append(node_messages.TellCoordinator(rules.job_id, wanted))

    def _to_monitor(self, local_rank: int, event: rank_monitor.Event) -> None:
        if not 0 <= local_rank < len(self._monitors):
            return
        self._monitors[local_rank], actions = rank_monitor.step(self._monitors[local_rank], event, now_s=self._now_s)
        for action in actions:
            match action:
                case rank_monitor.ReadPage():
                    self.actions.append(node_messages.ReadProgress(self._job.rules.job_id, self._job.cycle, local_rank))
                case rank_monitor.DeclareHang():
                    self._take_hang(local_rank, action)
                case _:
                    assert_never(action)

    def _to_plain(self, event: ranks_without_client.Event) -> None:
        ranks = ranks_without_client.Ranks(self._rank(0), self._monitors, self._watches, self._job, self._group)
        self._plain, actions = ranks_without_client.step(
            self._plain, event, now_s=self._now_s, cycle=self._job.cycle, ranks=ranks, rules=self._job.rules
        )
        for action in actions:
            if isinstance(action, hang_response.RankHung):
                self._inner.append(action)
            else:
                self.actions.append(action)

    def _take_of_worker(self, event: node_messages.WorkerReport) -> None:
        """Passes a worker's end to the call before the group, which checks whether the end is excused."""
        match event:
            case node_messages.WorkerSpawned(local_rank=local_rank):
                self._to_calls(local_call.RankStarted(local_rank))
            case node_messages.SpawnFailed(local_rank=local_rank, reason=reason):
                self._to_calls(local_call.RankStarted(local_rank))
                self._lose_rank(local_rank, f"was not started: {reason}", failed=True)
            case node_messages.WorkerExited(exit=exit_):
                self._to_monitor(exit_.local_rank, rank_monitor.WorkerEnded())
                self._to_watch(exit_.local_rank, call_watch.WorkerEnded())
                if local_call.excuse(self._calls, exit_.local_rank) is not worker_messages.Excuse.NONE:
                    self._end_session(exit_.local_rank, exit_.pid)
                self._lose_rank(exit_.local_rank, exit_.predicate, failed=not exit_.succeeded)
            case node_messages.WorkersEmptied():
                pass
            case _:
                assert_never(event)
        self._to_group(event)

    # --- wrapped calls ---------------------------------------------------------------------------------------------

    def _begin_calls(self) -> None:
        if (assignment := self._job.assignment) is not None:
            local_world_size = self._job.rules.local_world_size
            self._to_calls(local_call.CycleBegun(assignment.first_rank, local_world_size, assignment.world_size))

    def _take_hang(self, local_rank: int, hang: rank_monitor.DeclareHang) -> None:
        if (answer := call_limits.answer(self._calls, local_rank, hang)) is None:
            self._inner.append(hang_response.RankHung(local_rank, self._rank(local_rank), hang.reason))
            return
        self._to_monitor(local_rank, rank_monitor.SilenceExcused())
        for event in answer:
            self._to_watch(local_rank, event)

    def _tell_shorter_limit(self, local_rank: int) -> None:
        if self._job.limit_told or not 0 <= local_rank < len(self._monitors):
            return
        if text := call_limits.shorter(self._calls, self._monitors[local_rank], local_rank):
            self._job = msgspec.structs.replace(self._job, limit_told=True)
            self._say("call_before_limit", text, local_rank)

    def _say(self, kind: str, text: str, local_rank: int) -> None:
        said = JobEvent(kind, text, self._job.cycle, self._rank(local_rank))
        self.actions.append(node_messages.Publish(self._job.rules.job_id, said))

    def _lose_rank(self, local_rank: int, reason: str, *, failed: bool) -> None:
        excuse = local_call.excuse(self._calls, local_rank)
        if excuse is not worker_messages.Excuse.NONE:
            self._to_group(worker_messages.ExcuseRank(local_rank, excuse))
        self._to_calls(local_call.RankEnded(local_rank, reason, failed))

    def _end_session(self, local_rank: int, pid: int) -> None:
        """Ends what the rank has started: the cycle continues without it, so it would stay until the job's end."""
        job_id, cycle, kill = self._job.rules.job_id, self._job.cycle, int(signals.SIGKILL)
        self.actions.append(node_messages.SignalWorkers(job_id, cycle, kill, (local_rank,), tree=True, sessions=(pid,)))

    def _respawn(self, members: tuple[int, ...]) -> None:
        first_rank = self._rank(0)
        here = tuple(each - first_rank for each in members if 0 <= each - first_rank < len(self._monitors))
        if self._job.shutdown:
            for local_rank in here:  # The workload has asked to end at the next fault: starts nothing new.
                self._to_calls(local_call.RankStarted(local_rank))
                self._to_calls(local_call.RankEnded(local_rank, self._job.shutdown, failed=False))
            return
        for local_rank in here:
            self._monitors[local_rank] = rank_monitor.initial_state()
            self._watches[local_rank] = call_watch.initial_state()
        if here:
            self._inner.append(worker_messages.RespawnRanks(here))

    def _to_calls(self, event: local_call.Event) -> None:
        job_id, cycle, node = self._job.rules.job_id, self._job.cycle, self._job.node
        self._calls, actions = local_call.step(
            self._calls, event, now_s=self._now_s, job_id=job_id, cycle=cycle, node=node
        )
        for action in actions:
            match action:
                case node_messages.TellCoordinator() | node_messages.TellRanks():
                    self.actions.append(action)
                case local_call.WatchRank(local_rank, settings):
                    self._to_watch(local_rank, call_watch.CallEntered(settings))
                    self._to_watch(local_rank, call_watch.IterationBegun(settings))
                    self._to_monitor(local_rank, rank_monitor.SilenceExcused())
                    self._tell_shorter_limit(local_rank)
                case local_call.UnwatchRank(local_rank):
                    self._to_watch(local_rank, call_watch.CallLeft())
                case local_call.CondemnRank(local_rank):
                    self._to_watch(local_rank, call_watch.RankCondemned())
                case local_call.SettleExcuses(stands, reason):
                    self._inner.append(worker_messages.SettleExcuses(stands, reason))
                case _:
                    assert_never(action)

    def _to_watch(self, local_rank: int, event: call_watch.Event) -> None:
        if not 0 <= local_rank < len(self._watches):
            return
        job_id, cycle, budget_s = self._job.rules.job_id, self._job.cycle, self._job.rules.evidence_budget_s
        self._watches[local_rank], actions = call_watch.step(
            self._watches[local_rank], event, now_s=self._now_s, evidence_budget_s=budget_s
        )
        for action in actions:
            match action:
                case call_watch.ReadPage():
                    self.actions.append(node_messages.ReadProgress(job_id, cycle, local_rank))
                case call_watch.TakeStacks():
                    self._want_stacks(local_rank)
                case call_watch.TellFault(interruption, reason):
                    if interruption is Interruption.HARD_TIMEOUT:
                        text = f"rank {self._rank(local_rank)} {reason}; its process is ended"
                        self._say("hard_timeout_reached", text, local_rank)
                    self._to_calls(local_call.RankFaulted(local_rank, interruption, reason))
                case call_watch.SignalRank(signal, tree):
                    self.actions.append(
                        node_messages.SignalWorkers(job_id, cycle, signal, (local_rank,), tree=tree, resume=True)
                    )
                case _:
                    assert_never(action)

    def _rank(self, local_rank: int) -> int:
        return local_rank + (self._job.assignment.first_rank if self._job.assignment is not None else 0)

    def _sort(self, actions: tuple[node_messages.Action | _Told, ...]) -> None:
        """Keeps actions for the outside and queues messages for machines of this job."""
        for action in actions:
            if type(action) in _TOLD_KINDS:
                self._inner.append(cast("_Told", action))
                continue
            self.actions.append(cast("node_messages.Action", action))
            if type(action) in _ASKED_KINDS:
                self._to_spawner(cast("spawner_deadlines.Asked", action))
