"""Does only the wrapped function get the stores that its Wrapper names, once it asks? Real ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.worker_client.inprocess.ranks import ran
from worker_client.inprocess import Wrapper
from worker_client.inprocess.call.call_stores import CallStores
from worker_client.inprocess.store import StoreMixin

SCENARIOS = "tests.worker_client.inprocess.store_scenarios"
ran_with_torch = partial(ran, module=SCENARIOS, loads_torch=True)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


# One of them has its store load torch in the middle of the call.
@pytest.mark.parametrize(("scenario", "loads_torch"), [("file_store", False), ("tcp_store", True)])
def test_a_value_outlives_the_restart_and_the_iterations_part_does_not(
    tmp_path: Path, scenario: str, loads_torch: bool
):
    environment = {"MASTER_PORT": free_port(), "STORE_FILE": str(tmp_path / "store")}
    job = ran(tmp_path, scenario, 2, module=SCENARIOS, loads_torch=loads_torch, environment=environment)
    for rank in (0, 1):
        first, second = job.all(rank, "fn")
        assert (first["iteration"], second["iteration"]) == (0, 1)
        assert (first["base_is_new"], second["base_is_new"]) == (True, False)
        assert (first["part_is_new"], second["part_is_new"]) == (True, True)
        assert second["in_base"] == "from iteration 0"
        assert (first["in_part"], second["in_part"]) == (False, False)
        assert second["asked_twice"] is True
        assert job.one(rank, "opened")["times"] == 1
        assert job.one(rank, "over") == job.one(rank, "over") | {"is_closed": True, "environment_kept": True}


def test_who_never_asks_opens_nothing(tmp_path: Path):
    job = ran(tmp_path, "asks_for_none", 2, module=SCENARIOS)
    for rank in (0, 1):
        assert job.one(rank, "opened")["times"] == 0
        assert job.one(rank, "torch")["is_loaded"] is False
        assert "monitor_process_pidfile" in job.one(rank, "monitor_process")["message"]


class Opened(StoreMixin):
    """Records the environment in which it is opened."""

    environments: list[str | None]

    def __init__(self, *, port: int) -> None:
        self.environments = [os.environ.get("RANK"), str(port)]


@contextmanager
def as_launched() -> Generator[None]:
    present = os.environ.get("RANK")
    os.environ["RANK"] = "7"
    try:
        yield
    finally:
        os.environ.pop("RANK") if present is None else os.environ.update(RANK=present)


def test_the_factory_is_called_once_as_launched_with_its_arguments():
    stores = CallStores(Wrapper(store_factory=Opened, store_kwargs={"port": 5}), 1, as_launched)
    base = stores.base()
    assert isinstance(base, Opened)
    assert base.environments == ["7", "5"]
    assert stores.base() is base
    stores.forget()
    with pytest.raises(ValueError, match="its call is over"):
        stores.base()


def test_a_later_start_of_the_job_does_not_see_what_an_earlier_one_has_left(tmp_path: Path):
    """In a file, as in the store that torchrun serves."""
    environment = {"STORE_FILE": str(tmp_path / "store")}
    for cycle, epoch in (("0", ""), ("1", ""), ("0", "7"), ("0", "8"), ("1", "8")):  # A new run begins with cycle 0.
        start = {"HOLDFAST_CYCLE": cycle, "HOLDFAST_FENCING_EPOCH": epoch}
        job = ran_with_torch(tmp_path, "file_store", 2, environment=environment | start)
        for rank in (0, 1):
            assert [line["in_part"] for line in job.all(rank, "fn")] == [False, False]


def test_a_later_call_does_not_see_what_an_earlier_one_has_left(tmp_path: Path):
    job = ran_with_torch(tmp_path, "two_calls", 1, environment={"STORE_FILE": str(tmp_path / "store")})
    first, second = job.all(0, "fn")
    assert (first["in_part"], second["in_part"]) == (False, False)
    assert (first["in_base"], second["in_base"]) == (False, True)
