"""`holdfast run`: launches and supervises a job, in this process or through the node's supervisor."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from supervisor.config.resolve import RunRequest, parse_run
from supervisor.edges.machine import socket_dir
from supervisor.edges.machine.job_claims import JobClaims
from supervisor.edges.workers.spawner_process import start_process
from supervisor.errors import HoldfastError


def execute_argv(argv: Sequence[str]) -> int:
    """The whole command; returns its exit code. Blocks until the job has ended."""
    try:
        request = parse_run(argv, environ=os.environ, cwd=os.getcwd())
        for warning in request.warnings:
            tell(warning)
        if request.dry_run:
            from supervisor.config.plan_text import plan_text  # Only a dry run needs it.

            sys.stdout.write(plan_text(request))
            return 0
        return _run(request)
    except HoldfastError as error:
        tell(str(error))
        return error.exit_code


def tell(message: str) -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(f"holdfast: {message}\n")


def _run(request: RunRequest) -> int:
    for place in socket_dir.candidates(request.socket_dir):
        if socket_dir.answers(place.path / socket_dir.CONTROL_SOCKET):
            from supervisor.cli.run_remote import run_on_node  # gRPC is loaded only for a node's supervisor.

            return run_on_node(request, place.path)
        if place.explicit:
            raise socket_dir.nobody_answers(place.path)
    return _run_privately(request)


def _run_privately(request: RunRequest) -> int:
    claims = JobClaims()
    claims.take(request.spec.job_id)
    # The spawner starts while the rest is loaded: who waits for the first worker waits for the slower of the two.
    early = start_process(
        request.spec, env=request.environment, private=True, claim=claims.descriptors(request.spec.job_id)
    )
    folder = socket_dir.private_dir()
    try:
        gc.disable()  # What is loaded stays: to look for garbage in it would only take time.
        import anyio

        from supervisor.daemon import run_job

        gc.freeze()
        gc.enable()
        return anyio.run(run_job, request, folder, early, claims, backend_options={"use_uvloop": True})
    finally:
        import shutil  # Late: no start waits for it.

        shutil.rmtree(folder, ignore_errors=True)
