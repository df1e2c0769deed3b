"""What does the environment say about the supervisor, and what must it not be able to do?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker_client.endpoint import SOCKET_VARIABLES, TOKEN_BYTES_MAX, Endpoint, NoEndpoint, from_environment


def _environment(token: Path | str, **more: str) -> dict[str, str]:
    return {"HOLDFAST_SOCKET": "/s", "HOLDFAST_JOB_ID": "j", "HOLDFAST_TOKEN_FILE": str(token), **more}


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has read no token yet."""
    monkeypatch.setattr("worker_client.endpoint._tokens", {})


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(b"secret\n")
    return path


def test_the_token_is_taken_as_it_is(token: Path):
    assert from_environment(_environment(token, HOLDFAST_CYCLE="4")) == Endpoint("/s", "j", 4, b"secret\n")


@pytest.mark.parametrize("name", SOCKET_VARIABLES)
def test_each_name_of_the_socket_is_known(token: Path, name: str):
    environment = _environment(token)
    del environment["HOLDFAST_SOCKET"]
    found = from_environment(environment | {name: "/other", "TORCHELASTIC_RESTART_COUNT": "3"})
    assert found == Endpoint("/other", "j", 3, b"secret\n")


def test_an_inherited_descriptor_is_read_once_and_remembered():
    reader, writer = os.pipe()
    os.write(writer, b"by pipe")
    os.close(writer)
    path = f"/dev/fd/{reader}"
    first = from_environment(_environment(path))
    os.close(reader)
    assert first == from_environment(_environment(path)) == Endpoint("/s", "j", 0, b"by pipe")


def test_a_pipe_that_nobody_writes_to_does_not_block():
    reader, writer = os.pipe()
    found = from_environment(_environment(f"/dev/fd/{reader}"))
    os.close(reader)
    os.close(writer)
    assert isinstance(found, NoEndpoint)


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "it is empty"), (b"x" * (TOKEN_BYTES_MAX + 1), f"more than {TOKEN_BYTES_MAX} bytes")]
)
def test_a_token_has_bounds(tmp_path: Path, content: bytes, why: str):
    path = tmp_path / "odd"
    path.write_bytes(content)
    found = from_environment(_environment(path))
    assert isinstance(found, NoEndpoint)
    assert why in found.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_takes_no_token_of_another_user(token: Path):
    os.chown(token, 4321, 4321)
    found = from_environment(_environment(token))
    assert isinstance(found, NoEndpoint)
    assert "belongs to another user" in found.reason


def test_what_is_missing_is_named(token: Path):
    assert from_environment({}) == NoEndpoint("HOLDFAST_SOCKET is not set; start the script with `holdfast run`")
    for name in ("HOLDFAST_JOB_ID", "HOLDFAST_TOKEN_FILE"):
        assert from_environment(_environment(token) | {name: ""}) == NoEndpoint(f"{name} is not set")
    odd_cycle = from_environment(_environment(token, HOLDFAST_CYCLE="-1"))
    assert odd_cycle == NoEndpoint("HOLDFAST_CYCLE is '-1', not a number")
    lost = from_environment(_environment("/nowhere/token"))
    assert isinstance(lost, NoEndpoint)
    assert "cannot read the token /nowhere/token" in lost.reason


def test_the_shared_page_can_be_forbidden(token: Path):
    found = from_environment(_environment(token, HOLDFAST_NO_SHARED_PAGE="1"))
    assert isinstance(found, Endpoint)
    assert not found.can_share_page
