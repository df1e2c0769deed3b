"""Do the ranks of one job, and no others, name the same folder?"""

from __future__ import annotations

import pytest

from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor import job_folder
from worker_client.inprocess.private_supervisor.job_folder import job_key, launch_key, note_attempt, run_id

AT: dict[str, str] = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def of(rank: int, *more: dict[str, str], world_size: int = 4, local: int = 4) -> dict[str, str]:
    told = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local)}
    return {name: value for part in (told, *more) for name, value in part.items()}


def start(count: int) -> dict[str, str]:
    return {"TORCHELASTIC_RESTART_COUNT": str(count)}


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "_attempts", dict[str, str]())


def test_the_ranks_of_a_job_have_one_key_and_those_of_another_job_another() -> None:
    assert job_key(of(0, AT)) == job_key(of(3, AT))
    others = [
        of(0, AT, {"MASTER_PORT": "29501"}), of(0, AT, world_size=8, local=8), of(0, AT, {"SLURM_JOB_ID": "7"}),
        of(0, AT, start(1)),
    ]  # fmt: skip
    assert len({job_key(each) for each in others} | {job_key(of(0, AT))}) == 5


def test_one_rank_without_an_address_is_a_job_of_its_own_and_several_must_say_which() -> None:
    assert job_key({}) == job_key({"RANK": "0"})
    named = {"TORCHELASTIC_RUN_ID": "night"}
    assert job_key(of(0, named)) == job_key(of(1, named))
    with pytest.raises(InternalError, match="neither MASTER_PORT nor TORCHELASTIC_RUN_ID is set; set one of them"):
        job_key(of(0))


def test_on_several_nodes_the_ranks_agree_on_what_tells_one_start_from_the_next() -> None:
    """Each agent of torchrun counts its own ranks' failures: their counts differ within one start."""
    first, second = of(0, AT, start(0), local=2), of(2, AT, start(1), local=2)
    assert launch_key(first) == launch_key(second) == job_key(first)
    note_attempt(first, "a")
    once = job_key(first)
    note_attempt(first, "b")
    assert len({launch_key(first), once, job_key(second)}) == 3
    assert launch_key(of(0, local=2)), "what the ranks have in common is their store"


def test_the_names_that_launchers_give_to_a_job() -> None:
    assert run_id({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}) == "7"
    assert run_id({"TORCHELASTIC_RUN_ID": ""}) == ""
