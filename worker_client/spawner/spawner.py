"""What does the spawner do with each message, each death and each deadline?

One process, one thread, one epoll loop. It has no policy: it carries out the supervisor's orders and reports events.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from holdfast_wire import spawner_link, spawner_settings
from holdfast_wire.framing import FrameTooLongError
from holdfast_wire.spawner_link import SpawnerProtocolError, WorkerPlan
from holdfast_wire.spawner_settings import SpawnerSettings

from . import (
    child_state,
    error_file,
    exit_reports,
    fork_and_exec,
    process_attributes,
    process_tree,
    reaping,
    signalling,
    store_host,
)
from .auto_heartbeat import AutoHeartbeat
from .binding import Binding
from .cgroup import CycleCgroups
from .child_state import Inherited
from .cycle_kill import Killing
from .dropped_output import DroppedOutput
from .event_loop import READ, WRITE, Events
from .fork_and_exec import BecomeWorkerError, CannotExecuteError, Child, Start
from .learned_imports import LearnedImports
from .oom_kills import OomCounter, look_regularly, oom_counter
from .prefork_pool import PreforkPool
from .spawner_cycle_logs import CycleLogs
from .spawner_fence import Fence, without_ended_starts
from .start_method import Method
from .stores import Stores, Waiting
from .supervisor_link import Link
from .supervisor_reconnect import SupervisorReconnect
from .unreported_exits import UnreportedExits
from .worker_output import Output

STORE_HOST = -1  # the local rank under which the store host is kept
PREFORKED = -2  # the local rank of a fork that has no rank yet
# A private spawner ends its job within 5 s of the loss of its supervisor: this long for SIGTERM, the rest for SIGKILL.
LOST_TERM_S = 3.0
LOST_KILL_S = 1.5
SPAWNED_AT_ONCE = 8  # workers announced together: the first must not wait for the last of many
END_DRAIN_S = 1.0  # at the end, for output that a slow console has not taken yet


class Spawner:
    """The state of one job's spawner."""

    def __init__(
        self,
        settings: SpawnerSettings,
        method: Method,
        inherited: Inherited,
        link_fd: int,
        learning: LearnedImports,
        watch: AutoHeartbeat,
    ) -> None:
        self._settings = settings
        self._learning = learning
        self._watch = watch
        self._method = method
        self._inherited = inherited
        self._prepare_process()
        self._events = Events()
        self._link = Link(link_fd)
        self._reconnect = SupervisorReconnect(settings)
        self._dropped = DroppedOutput(self._events, "output", self._send)
        self._output = Output(self._events, self._dropped.add, self._printed, settings.console_line_fd)
        self._children: dict[int, Child] = {}  # pid -> not reaped yet
        self._cycle_ticks: dict[int, int] = {}  # cycle -> when its first worker started
        self._cgroups = CycleCgroups(settings.job_id, wanted=settings.cgroup)
        self._signalling = signalling.Signalling(self._events, self._children, settings)
        self._killing = Killing(self._events, self._cgroups, self._children, self._cycle_ticks, self.reap_all)
        self._cycle_logs = CycleLogs(self._events, inherited, self._killing, self._send)
        self._fence = Fence(
            self._events,
            lambda: self._killing.start(None, _nothing),
            is_told=lambda: self._link.is_readable,
        )
        self._records = UnreportedExits(settings.exit_record_dir, settings.job_id)
        self._stores = Stores(
            self._events,
            self._cgroups,
            inherited,
            self._serve_command if method.name == "exec" else None,
            on_started=lambda pid, it: self._adopt(it.cycle, STORE_HOST, pid, lingers=not it.port_is_wanted_again),
            on_failed=self._send,
        )
        self._prefork_pool = PreforkPool(
            self._events, inherited, adopt=lambda cycle, pid: self._adopt(cycle, PREFORKED, pid), keep=watch.kept_fds
        )
        self._wake_fd = self._wake_on_child()
        self._has_started = self._ending_alone = self._ended = False

    def run(self) -> NoReturn:
        """Serves until the job is over, then ends the process. Raises BecomeWorkerError in a forked worker."""
        self._events.watch(self._link.fd, READ, self._on_link)
        self._events.watch(self._wake_fd, READ, self._on_child_signal)
        if self._reconnect.is_possible:
            self._events.watch(self._reconnect.fd, READ, self._on_return)
        self._send(self._method.ready(self._cgroups.folder, holds_pages=self._reconnect.is_possible))
        try:
            while not self._ended:
                self._events.run_once()
        except BecomeWorkerError as worker:
            arguments = spawner_settings.worker_arguments(self._settings, worker.local_rank)
            if arguments != self._settings.command[1:]:  # Others may follow, if --python is a script that adds some.
                self._inherited.title.take_arguments(arguments)
            self._learning.observe(worker.local_rank)
            self._watch.begin(worker.local_rank)
            raise
        os._exit(0)  # A normal interpreter exit would run the user's script first.

    # --- set-up ----------------------------------------------------------------------------------------------------

    def _prepare_process(self) -> None:
        process_attributes.adopt_orphans()
        self._inherited.title.show("hf-spawner", f"holdfast spawner {self._settings.job_id}")
        if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
            os.setsid()  # Ctrl-C is for the supervisor.
        child_state.ignore_signals()

    def _wake_on_child(self) -> int:
        """Returns a descriptor that becomes readable when a child ends, including adopted ones."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, _nothing)  # having a handler makes the kernel interrupt the wait
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return reader

    # --- messages --------------------------------------------------------------------------------------------------

    def _on_link(self) -> None:
        self._link.flush()
        try:
            messages = self._link.receive(everything=self._fence.has_passed)
        except (SpawnerProtocolError, FrameTooLongError):
            self._link.lost = True  # An unintelligible supervisor is as good as none.
            messages = []
        for message in without_ended_starts(messages):
            self._perform(message)
        if self._link.lost:
            self._on_lost()
        else:
            self._watch_link()

    def _perform(self, message: spawner_link.Message) -> None:
        match message:
            case spawner_link.PrepareStore():
                self._send(self._stores.prepare(message))
            case spawner_link.ForkAhead(cycle, workers):
                if self._method.name == "fork":
                    self._prefork_pool.want(cycle, workers, self._cgroups.make(cycle))
            case spawner_link.Spawn():
                folder = self._cgroups.make(message.cycle)
                memory = oom_counter(folder)
                self._learning.begin(message.cycle, [plan.local_rank for plan in message.workers])
                for index, plan in enumerate(message.workers, start=1):
                    self._spawn(message.cycle, plan, folder, memory)
                    if index % SPAWNED_AT_ONCE == 0:
                        self._flush()
                self._flush()
                look_regularly(self._events, lambda: {each.memory for each in self._children.values() if each.memory})
                if not message.more:
                    self._prefork_pool.dismiss()
                self._fence.hold_back()
            case spawner_link.Signal():
                self._signalling.carry_out(message)
            case spawner_link.KillTree(cycle):
                self._kill(cycle)
            case spawner_link.Fence(until_ns, at_ns):
                self._fence.move(until_ns, at_ns)
            case spawner_link.End():
                self._prefork_pool.dismiss()
                self._killing.start(None, self._on_end)
            case spawner_link.Keep():
                self._reconnect.keep(message)
                for order in message.orders:
                    self._perform(order)
                if not message.more:
                    self._reconnect.save()
            case _:
                self._reconnect.take_pages(message, self._link)

    def _send(self, message: spawner_link.Report) -> None:
        self._queue(message)
        self._flush()

    def _queue(self, message: spawner_link.Report) -> None:
        if not self._link.drops(message):  # what is noted is sent: the supervisor confirms how many it got
            self._reconnect.note(message)
            self._link.queue(message)
        if self._link.lost:
            self._reconnect.save()

    def _flush(self) -> None:
        self._link.flush()
        self._watch_link()

    def _watch_link(self) -> None:
        if not self._link.lost:
            self._events.watch(self._link.fd, READ | (WRITE if self._link.has_unsent else 0), self._on_link)

    def _serve_command(self, store: Waiting) -> tuple[str, ...]:
        return store_host.serve_command(self._settings.python, store.host, store.port, store.listen_fd)

    # --- workers ---------------------------------------------------------------------------------------------------

    def _spawn(self, cycle: int, plan: WorkerPlan, cgroup_folder: str, memory: OomCounter) -> None:
        method = "exec" if plan.exec_prefix else self._method.name
        streams: dict[int, int] = {}
        try:
            self._open_output(cycle, plan, streams)
            bound = Binding(plan.cpus, plan.memory_node, plan.memory_strict)
            start = Start(streams, plan.env, cgroup_folder, binding=bound)
            if method == "fork":
                pid = self._fork(cycle, plan, start)
            else:
                argv = (*plan.exec_prefix, *spawner_settings.worker_argv(self._settings, plan.local_rank))
                pid = fork_and_exec.execute(self._inherited, start, argv, leave=self._events.close)
            self._name(cycle, plan, pid, memory)
        except BecomeWorkerError:
            streams.clear()  # This is the worker: its descriptors are already in place.
            raise
        except CannotExecuteError as error:
            self._send(spawner_link.SpawnFailed(cycle, plan.local_rank, str(error), error.exit_code))
        except (OSError, ValueError) as error:
            why = fork_and_exec.why_not_started(plan.local_rank, error)
            self._send(spawner_link.SpawnFailed(cycle, plan.local_rank, why, 1))
        else:
            self._has_started = True
            # Not sent at once: the supervisor would take CPU time from the next fork.
            self._queue(spawner_link.Spawned(cycle, plan.local_rank, pid, time.monotonic_ns(), method))
        finally:
            for fd in streams.values():
                os.close(fd)

    def _fork(self, cycle: int, plan: WorkerPlan, start: Start) -> int:
        """Returns the worker's pid: that of a preforked fork, else of a new one."""
        self._watch.clear(plan.local_rank)
        at_ticks = process_tree.ticks_now()
        pid = self._prefork_pool.take(cycle, plan.local_rank, start)
        if not pid:
            start = start._replace(keep=self._watch.kept_fds)
            return fork_and_exec.fork_worker(self._inherited, plan.local_rank, start, leave=self._events.close)
        # It was forked while the previous cycle could still leave children; its own come after this moment.
        self._cycle_ticks.setdefault(cycle, at_ticks)
        return pid

    def _open_output(self, cycle: int, plan: WorkerPlan, streams: dict[int, int]) -> None:
        """Fills `streams`. Raises OSError, ValueError.

        If a log can't be opened, a job that has never run is refused, so that people correct it; others continue.
        """
        self._cycle_logs.note_record(cycle, plan.env)
        needed = not self._has_started and cycle == 0
        error_folder = os.path.dirname(plan.env.get(error_file.VARIABLE, ""))
        try:
            if error_folder:
                os.makedirs(error_folder, mode=0o700, exist_ok=True)
        except OSError:
            if needed:
                raise
        if plan.cycle_log:
            streams.update(self._cycle_logs.streams(cycle, plan))
            return
        for number, stream in ((1, plan.stdout), (2, plan.stderr)):
            streams[number] = self._output.open(cycle, plan.local_rank, number, stream, file_needed=needed)

    def _name(self, cycle: int, plan: WorkerPlan, pid: int, memory: OomCounter) -> None:
        """Registers the process as this worker. If it can't be watched, ends it and raises OSError."""
        if pid not in self._children:
            try:
                self._adopt(cycle, plan.local_rank, pid, memory)
            except OSError:
                process_tree.send(pid, signal.SIGKILL)  # The reaper of orphans reaps it.
                raise
        child = self._children[pid]
        child.local_rank = plan.local_rank
        child.memory = memory
        child.error_file = plan.env.get(error_file.VARIABLE, "")
        child.stderr_file = plan.stderr.file if plan.stderr.direct else ""
        child.logs = tuple(each.file for each in (plan.stdout, plan.stderr) if each.file)

    def _adopt(
        self, cycle: int, local_rank: int, pid: int, memory: OomCounter | None = None, *, lingers: bool = False
    ) -> None:
        pidfd = os.pidfd_open(pid)
        child = self._children[pid] = Child(cycle, local_rank, pid, pidfd, memory, lingers=lingers)
        # Only for workers: others may start while the previous cycle's workers end and still leave children.
        if local_rank >= 0 and cycle not in self._cycle_ticks:
            self._cycle_ticks[cycle] = process_tree.start_ticks(pid) or 0
        self._events.watch(pidfd, READ, lambda: self._reap(child))

    def _on_child_signal(self) -> None:
        while True:
            try:
                if len(os.read(self._wake_fd, 4096)) < 4096:
                    break
            except BlockingIOError:
                break
        self.reap_all()
        self._report_stops()
        self._killing.go_on()
        self._learning.look(self._events, self._settings.learn_after_s, self._send)

    def reap_all(self) -> None:
        """Reaps every child that has ended: workers with a report, adopted ones silently."""
        while (pid := reaping.next_ended_child()) is not None:
            child = self._children.get(pid)
            if child is not None:
                self._reap(child)
            else:
                reaping.reap(os.P_PID, pid)

    def _report_stops(self) -> None:
        while (change := reaping.next_stop_or_continuation()) is not None:
            pid, number = change
            child = self._children.get(pid)
            if child is None or child.local_rank < 0:
                continue
            cycle, local_rank, at_ns = child.cycle, child.local_rank, time.monotonic_ns()
            if number:
                self._send(spawner_link.RankStopped(cycle, local_rank, pid, number, at_ns))
            else:
                self._send(spawner_link.RankContinued(cycle, local_rank, at_ns))

    def _reap(self, child: Child) -> None:
        ending = reaping.reap(os.P_PIDFD, child.pidfd)
        if ending is None:
            return
        at_ns = time.monotonic_ns()
        del self._children[child.pid]
        self._reconnect.drop_page(child.cycle, child.local_rank)
        self._events.forget(child.pidfd)
        os.close(child.pidfd)
        if child.local_rank == STORE_HOST:
            if child.killed_by_us:
                self._cgroups.remove(child.cycle)
            else:
                self._send(spawner_link.StoreExited(child.cycle, child.pid, ending.says()))
        elif child.local_rank == PREFORKED:
            self._prefork_pool.forget(child.pid)
        else:
            self._signalling.worker_ended(child, ending)
            tail = self._output.drain(child.cycle, child.local_rank)
            tail = tail or self._cycle_logs.drain(child.cycle, child.local_rank)
            quiet_s = self._watch.silence_longest_s(child.local_rank)
            exited = exit_reports.exited(child, ending, at_ns, tail, self._settings.command, silence_longest_s=quiet_s)
            if self._link.lost:
                self._records.write(exited)
            self._send(exited)
        if self._ending_alone and not self._signalling.has_workers:
            self._events.set_timer("lost", 0.0, self._kill_alone)
        self._killing.go_on()

    # --- the end ---------------------------------------------------------------------------------------------------

    def _kill(self, cycle: int) -> None:
        def emptied(killed: int, stuck_pids: tuple[int, ...]) -> None:
            self._cgroups.remove(cycle)
            self._cycle_ticks.pop(cycle, None)
            self._dropped.end(cycle)
            self._send(spawner_link.Emptied(cycle, killed, stuck_pids))
            self._cycle_logs.over(cycle)

        self._prefork_pool.dismiss(cycle)
        self._reconnect.drop_pages(cycle)
        self._stores.close(cycle)
        self._killing.start(cycle, emptied)

    def _on_end(self, _killed: int, _stuck_pids: tuple[int, ...]) -> None:
        self._cgroups.remove_all()
        self._cycle_logs.end(self._say_ended, alone=self._link.lost)

    def _say_ended(self) -> None:
        self._dropped.report()
        self._send(spawner_link.Ended())
        self._reconnect.save()
        self._leave_when(lambda: not self._output.has_waiting() and not self._link.has_unsent, END_DRAIN_S)

    def _leave_when(self, done: Callable[[], bool], delay_s: float) -> None:
        deadline_s = time.monotonic() + delay_s
        self._events.set_timer("leave", delay_s, _nothing)
        while not done() and time.monotonic() < deadline_s:
            self._events.run_once()
        self._ended = True

    def _on_lost(self) -> None:
        """Handles the loss of the supervisor, which may come back."""
        self._events.forget(self._link.fd)
        self._reconnect.lose_supervisor(self._link)
        # A container's freezer suspends this process together with the supervisors that may come.
        self._events.set_sliced_timer("lost", self._reconnect.wait_s, self._end_alone)

    def _on_return(self) -> None:
        """Accepts a supervisor whose predecessor must be gone."""
        while self._link.is_readable:
            self._on_link()  # its end may wait to be read, after the last that it has said
        returned = self._reconnect.accept(is_awaited=self._link.lost)
        if returned is None:
            return
        self._events.cancel_timer("lost")
        self._ending_alone = False
        self._signalling.call_off()
        self._events.forget(self._link.fd)
        os.close(self._link.fd)
        self._link = Link(returned.fd)
        for message in returned.messages:
            self._link.queue(message)
        self._flush()

    def _end_alone(self) -> None:
        self._ending_alone = True
        self._prefork_pool.dismiss()
        self._signalling.terminate_workers()
        self._events.set_sliced_timer("lost", LOST_TERM_S if self._signalling.has_workers else 0.0, self._kill_alone)

    def _kill_alone(self) -> None:
        self._ending_alone = False
        self._events.forget(self._reconnect.fd)  # who comes now waits for the end of this process, then reads its file
        self._killing.start(None, self._on_end, wait_s=LOST_KILL_S)

    def _printed(self, cycle: int, local_rank: int) -> None:
        if cycle:  # At the start, nobody asks how long it took.
            self._send(spawner_link.FirstOutput(cycle, local_rank, time.monotonic_ns()))


def _nothing(*_: object) -> None:
    pass
