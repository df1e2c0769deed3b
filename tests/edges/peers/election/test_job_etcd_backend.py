"""How is the job's own etcd opened, and what is done with what an earlier supervisor of this node has left?"""

from __future__ import annotations

import errno
import shutil
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from supervisor.config.job_spec import Nodes
from supervisor.edges.machine.own_process.kernel_error_remedies import is_passing
from supervisor.edges.peers.election import member_tls
from supervisor.edges.peers.election.job_etcd_backend import open_backend
from supervisor.edges.peers.transport import cluster_tls
from supervisor.errors import ConfigurationError
from supervisor.ports.rendezvous_backend import BackendUnavailableError
from tests.etcd_server import free_ports

TLS = cluster_tls.from_token(b"a secret of the job")
NODES = Nodes(2, 3, "127.0.0.1", free_ports(1)[0], "n1", backend="etcd", backend_options=(("members", "3"),))

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd: apt-get install etcd-server")


@needs_etcd
@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_a_killed_run_has_left_is_removed_unless_this_process_goes_on(tmp_path: Path, *, goes_on: bool):
    left = tmp_path / "etcd" / "job" / "n1" / "data"
    left.mkdir(parents=True)
    backend = await open_backend("job", NODES, TLS, own_host="127.0.0.1", state_dir=tmp_path, goes_on=goes_on)
    assert left.exists() is goes_on
    key = left.parent / "key.pem"
    assert key.stat().st_mode & 0o077 == 0
    await backend.close()


@needs_etcd
async def test_calls_wait_and_then_say_that_no_member_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("supervisor.edges.peers.election.job_etcd_members.READY_S", 0.05)
    backend = await open_backend("job", NODES, TLS, own_host="127.0.0.1", state_dir=tmp_path, goes_on=False)
    with pytest.raises(BackendUnavailableError, match="no member of the job's own etcd answers"):
        await backend.leader()
    with pytest.raises(BackendUnavailableError):
        await backend.try_to_lead("n1", "127.0.0.1:1")
    await backend.close()


@needs_etcd
async def test_a_certificate_that_does_not_name_the_nodes_address_is_refused(tmp_path: Path):
    files = _certificate_for(tmp_path, "127.0.0.2")
    tls = cluster_tls.load(files)
    nodes = Nodes(
        2, 3, "127.0.0.1", 2379, "n1", backend="etcd", backend_options=NODES.backend_options,
        tls_cert=files.certificate, tls_key=files.key, tls_ca=files.authority,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"add subjectAltName=IP:127\.0\.0\.1 to the certificate"):
        await open_backend("job", nodes, tls, own_host="127.0.0.1", state_dir=tmp_path, goes_on=False)
    backend = await open_backend("job", nodes, tls, own_host="127.0.0.2", state_dir=tmp_path, goes_on=False)
    await backend.close()
    assert not list((tmp_path / "etcd").glob("*/*/*.pem"))


@needs_etcd
async def test_with_a_token_a_certificate_alone_is_not_enough(tmp_path: Path):
    """The members' certificates come from the token, which only nodes of the job know."""
    files = _certificate_for(tmp_path, "127.0.0.2")
    nodes = Nodes(
        2, 3, "127.0.0.1", 2379, "n1", backend="etcd", backend_options=NODES.backend_options,
        tls_cert=files.certificate, tls_key=files.key, tls_ca=files.authority,
    )  # fmt: skip
    both = msgspec.structs.replace(cluster_tls.load(files), token=b"a secret of the job")
    backend = await open_backend("job", nodes, both, own_host="127.0.0.1", state_dir=tmp_path, goes_on=False)
    authority = next((tmp_path / "etcd").glob("*/*/authority.pem"))
    assert authority.read_bytes() != (tmp_path / "node.pem").read_bytes()
    await backend.close()


@needs_etcd
async def test_after_a_shortage_of_descriptors_the_next_try_finds_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def none_left(files: member_tls.MemberFiles) -> ssl.SSLContext:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as once:
        once.setattr(member_tls, "context", none_left)
        with pytest.raises(ConfigurationError) as refused:
            await open_backend("job", NODES, TLS, own_host="127.0.0.1", state_dir=tmp_path, goes_on=True)
    assert is_passing(refused.value.__cause__)
    backend = await open_backend("job", NODES, TLS, own_host="127.0.0.1", state_dir=tmp_path, goes_on=True)
    await backend.close()


def test_a_certificate_that_cannot_be_opened_now_is_not_called_wrong(monkeypatch: pytest.MonkeyPatch):
    def none_left(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Path, "read_bytes", none_left)
    with pytest.raises(OSError, match="too many open files"):
        member_tls.given(cluster_tls.TlsFiles("c", "k", "a"), "127.0.0.1")


def _certificate_for(folder: Path, address: str) -> cluster_tls.TlsFiles:
    certificate, key = folder / "node.pem", folder / "node.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=n1"]
    command += ["-addext", f"subjectAltName=IP:{address}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return cluster_tls.TlsFiles(str(certificate), str(key), str(certificate))
