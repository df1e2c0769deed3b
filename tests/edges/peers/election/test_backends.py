"""A user's backend is found through its entry point; errors say what to do."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

from supervisor.config.job_spec import Nodes
from supervisor.config.resolve import parse_run
from supervisor.edges.peers.election import backends
from supervisor.edges.peers.election.etcd_backend import EtcdBackend
from supervisor.errors import ConfigurationError, InvalidRequestError
from supervisor.ports.rendezvous_backend import Place

MODULE = """
class Backend:
    def __init__(self, place):
        self.place = place
        if "colour" in place.options:
            raise ValueError("it has no option colour")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Makes a package as pip installs it: a module, and metadata with its entry points."""
    (tmp_path / "the_users_own.py").write_text(MODULE)
    metadata = tmp_path / "the_users_own-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: the-users-own\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[holdfast.rendezvous_backends]\nZoo = the_users_own:Backend\nbroken = the_users_own:missing\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("the_users_own", None)


def nodes(backend: str, **options: str) -> Nodes:
    return Nodes(2, 3, "10.0.0.1", 2181, "a", backend=backend, backend_options=tuple(options.items()))


def parsed(*argv: str) -> Nodes:
    meet = ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:2181", "--rdzv-id", "x")
    spec = parse_run([*meet, *argv, "train.py"], environ={}, cwd="/data", count_gpus=lambda _: 0).spec
    assert spec.nodes is not None
    return spec.nodes


@pytest.mark.usefixtures("installed")
def test_a_package_offers_a_backend():
    found = parsed("--rdzv-backend", "Zoo", "--rdzv-conf", "animal=ape,join_timeout=30,leader_ttl=5")
    assert (found.backend, found.backend_options, found.leader_ttl_s) == ("Zoo", (("animal", "ape"),), 5.0)
    place = cast("Place", vars(backends.open_backend("x", found))["place"])
    assert (place.host, place.port, place.options) == ("127.0.0.1", 2181, {"animal": "ape"})


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_a_users_backend_is_said():
    with pytest.raises(ConfigurationError, match="cannot use --rdzv-backend Zoo: it has no option colour; check"):
        backends.open_backend("x", nodes("Zoo", colour="red"))
    with pytest.raises(ConfigurationError, match=r"cannot load --rdzv-backend broken \(the_users_own:missing\)"):
        backends.open_backend("x", nodes("broken"))
    with pytest.raises(ConfigurationError, match="cannot find --rdzv-backend none: no installed package offers it"):
        backends.open_backend("x", nodes("none"))


def test_names_of_torchrun_are_mapped():
    assert [parsed("--rdzv-backend", name).backend for name in ("c10d", "static", "embedded", "etcd", "etcd-v2")] == [
        "embedded", "embedded", "embedded", "etcd", "etcd",
    ]  # fmt: skip
    assert isinstance(backends.open_backend("x", nodes("etcd")), EtcdBackend)


def test_an_option_that_nothing_knows_is_refused():
    with pytest.raises(InvalidRequestError, match="there is no option tokenfile; write one of fan_out, join_timeout"):
        parsed("--rdzv-conf", "tokenfile=x")
    with pytest.raises(ConfigurationError, match="etcd has no option tokenfile"):
        backends.open_backend("x", nodes("etcd", tokenfile="x"))
