"""`holdfast run`: launches and supervises a job, in this process or through the node's supervisor."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from supervisor.cli import name_conflicts
from supervisor.cli.current_folder import current_folder
from supervisor.cli.event_handlers import event_handlers
from supervisor.config.environment import ONE_THREAD
from supervisor.config.job_spec import Entry, JobSpec
from supervisor.config.recorded_settings import with_sources
from supervisor.config.rendezvous_settings import shared_token
from supervisor.config.resolve import RunRequest, parse_run
from supervisor.config.run_folder import run_folder
from supervisor.edges.machine.folders import private_dir, socket_dir, state_dir, supervisor_owner
from supervisor.edges.machine.own_process import ignored_signals, standard_streams
from supervisor.edges.machine.processes import same_machine_nodes
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.spawner.spawner_process import SpawnerProcess, start_process
from supervisor.errors import AlreadyExistsError, HoldfastError, InvalidRequestError, NoSupervisorError
from supervisor.ports.reports import JobReport

SPAWNER_END_TIMEOUT_S = 10.0  # it kills what is left after 5 s


def execute_argv(argv: Sequence[str]) -> int:
    """Runs the whole command and returns its exit code. Blocks until the job has ended. Raises HoldfastError."""
    cwd = current_folder()
    request = parse_run(argv, environ=os.environ, cwd=cwd)
    if not cwd and request.spec.entry is Entry.SCRIPT and not os.path.isabs(request.spec.command[0]):
        raise _folder_removed(request.spec)
    if not cwd and request.spec.log_dir and not os.path.isabs(request.spec.log_dir):
        raise InvalidRequestError(
            f"cannot keep logs in {request.spec.log_dir}: the current folder was removed; go to one that exists"
        )
    for warning in (*request.warnings, *_hidden_client(request, cwd), *_other_environment(request, os.environ)):
        if warning != ONE_THREAD:  # It is said once the first workers start.
            standard_streams.say(f"holdfast: {warning}")
    if request.dry_run:
        from supervisor.config.plan_text import plan_text  # Only a dry run needs it.

        sys.stdout.write(plan_text(request, supervisor=_whose(request)))
        return 0
    _make_token(request)
    return _run(msgspec.structs.replace(request, spec=with_sources(request.spec, request.sources)))


def _make_token(request: RunRequest) -> None:
    """Makes the token that the user's nodes share by their home, at its first use."""
    nodes = request.spec.nodes
    if nodes is None or not nodes.token_file or nodes.token_file != shared_token(os.environ):
        return
    from supervisor.edges.machine.folders import rendezvous_token_file  # Late: only jobs of several nodes need it.

    if rendezvous_token_file.make(nodes.token_file):
        standard_streams.say(
            f"holdfast: made the token {nodes.token_file}: nodes that do not share this folder need a copy, 0600"
        )


def _hidden_client(request: RunRequest, cwd: str) -> tuple[str, ...]:
    """Returns a warning if the script's own folder has a worker_client of its own."""
    spec = request.spec
    if spec.entry is Entry.COMMAND:
        return ()
    folder = cwd if spec.entry is Entry.MODULE else os.path.join(cwd, os.path.dirname(spec.command[0]))
    found = name_conflicts.hidden_client(folder)
    return (f"warning: {found}",) if found else ()


def _other_environment(request: RunRequest, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a warning if the ranks run in this command's Python, which lacks torch, beside an active environment."""
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if request.spec.python or request.spec.entry is Entry.COMMAND or not active or active == sys.prefix:
        return ()
    from importlib.util import find_spec  # Late: most commands run in the active environment.

    if find_spec("torch") is not None:
        return ()
    return (
        f"warning: the ranks run in {sys.executable}, which has no torch, and not in the active environment {active}; "
        f"for that one: --python python3",
    )


def _whose(request: RunRequest) -> str:
    """Says which supervisor would get the job."""
    try:
        with _nodes_supervisor(request) as found:
            return f"the node's, at {found[0]}" if found else "private: this command itself"
    except NoSupervisorError as error:
        return f"none, so the command would end with exit code {error.exit_code}: {error}"


def _run(request: RunRequest) -> int:
    with _nodes_supervisor(request) as found:
        if found:
            from supervisor.cli.run_via_daemon import run_on_node  # gRPC is loaded only for a node's supervisor.

            try:
                return run_on_node(request, *found)
            except AlreadyExistsError:
                nodes = request.spec.nodes
                if nodes is None or not same_machine_nodes.has_further(request.spec.job_id, nodes.meets_at):
                    raise
    return _run_privately(request)  # Or the node's supervisor has one part of the job, and this is another.


@contextmanager
def _nodes_supervisor(request: RunRequest) -> Generator[tuple[Path, Path] | None]:
    """Yields where the node's supervisor answers, and a path there that stays; None if the job runs privately.

    Raises NoSupervisorError if the user named a folder in which none answers that may have the job, and
    InvalidRequestError if the current folder was removed: the ranks would run in the supervisor's.
    """
    with ExitStack() as stack:
        found = None
        for place in socket_dir.candidates(request.socket_dir):
            if socket_dir.answers(place.path / socket_dir.CONTROL_SOCKET):
                try:
                    found = place.path, stack.enter_context(supervisor_owner.opened(place.path))
                    break
                except NoSupervisorError as error:
                    if place.explicit:
                        raise
                    standard_streams.say(f"holdfast: warning: {error}")
            elif place.explicit:
                raise socket_dir.nobody_answers(place.path)
        if found and not request.spec.cwd:
            raise _folder_removed(request.spec)
        yield found


def _folder_removed(spec: JobSpec) -> InvalidRequestError:
    return InvalidRequestError(f"cannot run {spec.command[0]}: the current folder was removed; go to one that exists")


def _run_privately(request: RunRequest) -> int:
    with _warnings_shown():
        claims, request = _placed(request)
    # Under nohup, SIGHUP stays ignored here and in the ranks.
    ignored_signals.reset_in_children(ignored_signals.forwarded(request.spec.signals_to_handle))
    # The spawner starts while the rest is loaded: who waits for the first worker waits for the slower of the two.
    early = start_process(
        request.spec,
        env=request.environment,
        private=True,
        claim=claims.descriptors(request.spec.job_id),
        exit_record_dir=_run_folder(request, claims),
    )
    try:
        folder = private_dir.make()
    except HoldfastError:
        _end(early)
        raise
    try:
        with ExitStack() as stack:
            _show_waiting(request.spec, stack)
            gc.disable()  # What is loaded stays: to look for garbage in it would only take time.
            import anyio

            from supervisor.cli.startup_hints import StartupHints
            from supervisor.wiring.supervisor import run_job

            gc.freeze()
            gc.enable()
            handlers = (StartupHints(request.warnings), *event_handlers(request.event_hooks, stack))
            report = anyio.run(run_job, request, folder, early, claims, handlers, backend_options={"use_uvloop": True})
    except BaseException:  # whatever it was, the job ends before we do; raised again
        _end(early)
        raise
    finally:
        import shutil  # Late: no start waits for it.

        shutil.rmtree(folder, ignore_errors=True)
    if report.exit_code:
        _tell_failure(report, request)
    return 1 if report.exit_code is None else report.exit_code


def _tell_failure(report: JobReport, request: RunRequest) -> None:
    try:
        from supervisor.cli.run_failure_message import shows_errors, tell_failure  # Only a failure needs them.
        from supervisor.config.redaction import secret_values
    except ImportError as error:
        told = f"{report.reason}; its last lines cannot be shown: the installation was replaced while it ran ({error})"
        standard_streams.say(f"holdfast: error: {told}; see holdfast logs {request.spec.job_id}")
        return
    secrets = secret_values(request.spec.command, request.environment)
    tell_failure(report, secrets=secrets, is_shown=shows_errors(request.spec))


def _run_folder(request: RunRequest, claims: JobClaims) -> str:
    """Returns where the logs of this run will be. The spawner records there how ranks end once we are gone."""
    spec = request.spec
    log_dir = spec.log_dir or str(state_dir.default_log_dir(state_dir.find(request.state_dir)))
    since_ns = claims.since_ns(spec.job_id)
    return run_folder(log_dir, spec.job_id, since_ns) if since_ns is not None else ""


def _placed(request: RunRequest) -> tuple[JobClaims, RunRequest]:
    """Takes the job's id. A further node of the job on this machine gets a name and a state directory of its own."""
    spec, nodes = request.spec, request.spec.nodes
    if nodes is None:
        return same_machine_nodes.take(spec.job_id).claims, request
    rank = spec.facts.infrastructure_rank
    place = same_machine_nodes.take(spec.job_id, name=nodes.name, rank=rank, meets_at=nodes.meets_at)
    if place.number == 0:
        return place.claims, request
    standard_streams.say(f"holdfast: this machine runs a node of job {spec.job_id} already: this one is {place.name}")
    spec = msgspec.structs.replace(spec, nodes=msgspec.structs.replace(nodes, name=place.name))
    own = str(state_dir.of_node(state_dir.find(request.state_dir), place.name))
    return place.claims, msgspec.structs.replace(request, spec=spec, state_dir=own)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        standard_streams.say(f"holdfast: warning: {record.getMessage()}")


@contextmanager
def _warnings_shown() -> Generator[None]:
    """Shows warnings as this command's own lines, before its log is open."""
    with _handled_by(_Warnings(logging.WARNING)):
        yield


@contextmanager
def _handled_by(handler: logging.Handler) -> Generator[None]:
    """Gives the handler all records of ours, in the thread that logs them."""
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _show_waiting(spec: JobSpec, stack: ExitStack) -> None:
    """Shows progress to a person at a terminal while torch is loaded.

    It hears of events before the log's thread does: the line is erased before a worker can print in its place.
    """
    if not standard_streams.stderr_is_terminal():
        return
    from supervisor.cli.startup_progress import waiting

    stack.enter_context(_handled_by(waiting(spec, stack)))


def _end(early: SpawnerProcess) -> None:
    """Closes the link: a private spawner ends its job once nobody holds the other end of its socket."""
    early.socket.close()
    with suppress(subprocess.TimeoutExpired):
        early.process.wait(SPAWNER_END_TIMEOUT_S)
