"""Who may speak for a rank: cycle, token, rank and pid must agree."""

from __future__ import annotations

import os

import anyio
import pytest
from msgspec.structs import replace

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import HangLimits
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.workers.channel.worker_admission import Admitted, NotYet, OpenCycle, Refusal, WorkerCycles
from supervisor.edges.workers.channel.worker_frames import Hello
from tests.settling import settled

HELLO = Hello(1, b"t" * 32, "job", 2, 9, 1, True, 0, None, 0, 0)
WORKER, CHILD, GRANDCHILD, STRANGER = 500, 501, 502, 900
PARENTS = {CHILD: WORKER, GRANDCHILD: CHILD}


def _peer(pid: int, *, foreign: bool = False) -> Peer:
    return Peer(pid, os.geteuid(), foreign)


def _descends_from(pid: int, ancestor: int) -> bool:
    return PARENTS.get(pid) == ancestor or (pid in PARENTS and _descends_from(PARENTS[pid], ancestor))


@pytest.fixture
def cycles() -> WorkerCycles:
    made = WorkerCycles(descends_from=_descends_from)
    spec = JobSpec(job_id="job", command=("x",), local_world_size=2)
    made.open(OpenCycle("job", 2, b"t" * 32, spec, HangLimits(), first_rank=8))
    return made


def test_an_unannounced_worker_waits_and_is_admitted_once_announced(cycles: WorkerCycles):
    assert isinstance(cycles.answer(HELLO, _peer(WORKER)), NotYet)
    cycles.expect("job", 2, 1, WORKER)
    assert isinstance(cycles.answer(HELLO, _peer(WORKER)), Admitted)
    assert isinstance(cycles.answer(HELLO, _peer(STRANGER)), NotYet)


async def test_a_worker_of_another_launcher_is_named_and_admitted_once_it_is_expected(
    cycles: WorkerCycles,
):
    named: list[tuple[int, int]] = []

    async def name() -> None:
        named.append(await cycles.next_unknown("job"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(name)
        await settled()
        assert isinstance(cycles.answer(HELLO, _peer(WORKER)), NotYet)
        assert isinstance(cycles.answer(HELLO, _peer(STRANGER)), NotYet)
    assert named == [(1, WORKER)], "the first that shows the token"
    cycles.expect("job", 2, *named[0])
    assert isinstance(cycles.answer(HELLO, _peer(WORKER)), Admitted)


def test_a_child_speaks_only_while_the_worker_itself_does_not(cycles: WorkerCycles):
    """A worker that is a shell runs the script as its child; a data loader must not replace its parent."""
    cycles.expect("job", 2, 1, WORKER)
    answer = cycles.answer(HELLO, _peer(CHILD))
    assert isinstance(answer, Admitted)
    answer.cycle.speaking[1] = CHILD
    assert isinstance(cycles.answer(HELLO, _peer(WORKER)), Admitted)
    answer.cycle.speaking[1] = WORKER
    assert isinstance(cycles.answer(HELLO, _peer(CHILD)), NotYet)


def test_a_child_of_the_script_does_not_replace_it_where_a_shell_started_the_script(cycles: WorkerCycles):
    """An evaluation that the script starts has its variables, and says hello, too."""
    cycles.expect("job", 2, 1, WORKER)
    answer = cycles.answer(HELLO, _peer(CHILD))
    assert isinstance(answer, Admitted)
    answer.cycle.speaking[1] = CHILD
    assert isinstance(cycles.answer(HELLO, _peer(GRANDCHILD)), NotYet)
    assert isinstance(cycles.answer(HELLO, _peer(CHILD)), Admitted), "it comes back"
    del answer.cycle.speaking[1]
    assert isinstance(cycles.answer(HELLO, _peer(GRANDCHILD)), Admitted), "nobody else speaks"


def test_from_another_namespace_the_token_decides(cycles: WorkerCycles):
    assert isinstance(cycles.answer(HELLO, _peer(0, foreign=True)), Admitted)
    assert isinstance(cycles.answer(replace(HELLO, token=b"x"), _peer(0, foreign=True)), Refusal)


@pytest.mark.parametrize(
    ("changed", "retry"),
    [
        ({"token": b"t" * 31}, False),
        ({"cycle": 1}, False),
        ({"cycle": 3}, True),
        ({"job_id": "job2"}, True),
        ({"rank": 8}, False),
        ({"local_rank": 2, "rank": 10}, False),
        ({"protocol": 0}, False),
    ],
)
def test_anything_else_is_refused(cycles: WorkerCycles, changed: dict[str, object], retry: bool):
    cycles.expect("job", 2, 1, WORKER)
    answer = cycles.answer(replace(HELLO, **changed), _peer(WORKER))  # pyright: ignore[reportArgumentType]
    assert isinstance(answer, Refusal)
    assert answer.retry == retry


def test_a_closed_cycle_is_unknown_and_closing_twice_is_nothing(cycles: WorkerCycles):
    assert cycles.close("job", 2) is not None
    assert cycles.close("job", 2) is None
    cycles.expect("job", 2, 1, WORKER)
    assert cycles.answer(HELLO, _peer(WORKER)) == Refusal(
        "cannot serve cycle 2 of job 'job': this supervisor does not run it now", retry=True
    )
