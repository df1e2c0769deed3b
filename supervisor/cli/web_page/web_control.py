"""What may the web page do to a job, who may ask it to, and what is answered?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse

from supervisor.cli.control import ask_live
from supervisor.cli.job_owners import who_asks
from supervisor.cli.stacks import stacks_text
from supervisor.cli.supervisor_discovery import Supervisors
from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.operators.cross_origin_check import is_name_of_here
from supervisor.errors import HoldfastError, InvalidRequestError, NotFoundError, NotNowError, NotPermittedError

Act = Callable[[ControlClient, str, str], str]  # job id, who asks; the answer is for people

STATUS: dict[type[HoldfastError], int] = {
    NotPermittedError: 403,
    NotFoundError: 404,
    NotNowError: 409,
    InvalidRequestError: 400,
}
UNANSWERED = 503
HEADERS = {"X-Content-Type-Options": "nosniff"}


def _stop(client: ControlClient, job_id: str, asker: str) -> str:
    client.stop(job_id, reason=asker)
    return f"job {job_id} is being stopped"


def _restart(client: ControlClient, job_id: str, asker: str) -> str:
    cycle = client.restart(job_id, reason=asker)
    return f"job {job_id} restarts: cycle {cycle} comes next"


def _stacks(client: ControlClient, job_id: str, asker: str) -> str:
    del asker  # Nothing is recorded: the job goes on as it was.
    return stacks_text(client.stacks(job_id, None))


ACTS: dict[str, tuple[str, Act]] = {
    "stop": ("stop", _stop),
    "restart": ("restart", _restart),
    "stacks": ("take stacks of", _stacks),
}


class Control:
    """Answers in JSON: `{"done": …}`, or `{"error": …}` with a status that says which kind."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments

    async def answer(self, request: Request) -> JSONResponse:
        """Carries out the action for a user who is signed in. The query's `run` is the time of the job's submission."""
        name, act = request.path_params["job_id"], request.path_params["act"]
        if act not in ACTS:
            return refusal(404, f"cannot {act} job {name}: a page can {', '.join(ACTS)}; choose one of them")
        verb = ACTS[act][0]
        host = request.headers.get("host", "")
        if not is_name_of_here(host):
            why = f"{host!r} is not a name of this machine; open the address that holdfast web has printed"
            return refusal(403, f"cannot {verb} job {name}: {why}")
        peer = request.client.host if request.client else "an unknown address"
        asker = f"holdfast web by {who_asks()} from {peer}"
        try:
            done = await in_thread(partial(self._act, name, act, request.query_params.get("run", ""), asker))
        except HoldfastError as error:
            return refusal(STATUS.get(type(error), UNANSWERED), str(error))
        except NoThreadError as error:
            return refusal(UNANSWERED, f"cannot {verb} job {name}: {error}")
        return JSONResponse({"done": done}, headers=HEADERS)

    def _act(self, name: str, act: str, run: str, asker: str) -> str:
        verb, perform = ACTS[act]
        with Supervisors(self._arguments, say=lambda _: None) as supervisors:
            job, client = ask_live(supervisors, name, verb=verb)
            job_id = job.report.job_id
            if job.name != name:
                raise NotFoundError(f"cannot {verb} job {name}: there is no such job; write its whole id")
            if run and str(client.job(job_id).submitted_at_ns) != run:
                raise NotNowError(
                    f"cannot {verb} job {job_id}: that run has ended, and the id is another run's by now; "
                    "reload the page"
                )
            return perform(client, job_id, asker)


def refuse_all(request: Request) -> JSONResponse:
    """Returns the answer of a read-only page."""
    act, name = request.path_params["act"], request.path_params["job_id"]
    return refusal(405, f"cannot {act} job {name}: the page is read-only; start holdfast web --control")


def refusal(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status, headers=HEADERS)
