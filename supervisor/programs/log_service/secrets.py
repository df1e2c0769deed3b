"""With which secrets do the processes of the log server authenticate? Those of the job's cluster stream."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import msgspec
from anyio.streams.tls import TLSAttribute

from supervisor.edges.peers import cluster_tls, job_secrets, token_certificate
from supervisor.edges.peers.job_secrets import read_token
from supervisor.programs.log_service.frames_codec import Proofs
from supervisor.programs.log_service.settings import Settings

if TYPE_CHECKING:
    import grpc

NAMES_TIMEOUT_S = 5.0


class Secrets(msgspec.Struct, frozen=True):
    """The secrets of a process. `certificate` b"": it has none, and connections are plain."""

    key: bytes = b""
    certificate: bytes = b""
    authority: bytes = b""
    token: bytes = b""  # proven beside given certificates
    is_from_token: bool = False  # the certificate

    @property
    def own_proofs(self) -> Proofs:
        """Returns what is proved where this process calls another one."""
        return self.proofs_for(self.certificate) if self.token else Proofs()

    def proofs_for(self, certificate: bytes) -> Proofs:
        """`certificate`: the caller's, as PEM, maybe followed by others."""
        if not self.token:
            return Proofs()
        first, end, _ = certificate.decode().partition(ssl.PEM_FOOTER)
        return Proofs(self.token, ssl.PEM_cert_to_DER_cert(first[first.index(ssl.PEM_HEADER) :] + end))


def secrets_of(settings: Settings) -> Secrets:
    """Reads the secrets. Blocks on the disk. Raises ConfigurationError."""
    if settings.tls_cert:
        tls = job_secrets.read(settings.token_file, _files(settings))  # refuses the same files for the same reasons
        paths = (settings.tls_key, settings.tls_cert, settings.tls_ca)
        return Secrets(*(Path(each).read_bytes() for each in paths), token=cluster_tls.token_of(tls))
    if settings.token_file:
        return from_token(read_token(Path(settings.token_file)))
    return Secrets()


def from_token(token: bytes) -> Secrets:
    return Secrets(*token_certificate.process_pem_of(token), is_from_token=True)


def server_credentials(known: Secrets) -> grpc.ServerCredentials | None:
    """Returns the credentials; None without TLS."""
    if not known.certificate:
        return None
    import grpc

    pair = [(known.key, known.certificate)]
    return grpc.ssl_server_credentials(pair, root_certificates=known.authority, require_client_auth=True)


def channel_credentials(known: Secrets) -> grpc.ChannelCredentials | None:
    """Returns the credentials; None without TLS."""
    if not known.certificate:
        return None
    import grpc

    return grpc.ssl_channel_credentials(known.authority, known.key, known.certificate)


async def name_of(known: Secrets, settings: Settings, host: str, port: int) -> str:
    """Returns a name in the certificate of the process that listens there; "" if unavailable."""
    if known.is_from_token:
        return token_certificate.PROCESS_NAME
    return await name_in_certificate(settings, host, port)


async def name_in_certificate(settings: Settings, host: str, port: int) -> str:
    """Returns a name in the server's certificate; "" if unavailable.

    gRPC compares names, but nodes meet by address, and any certificate of the cluster's authority is valid: it is
    checked here, and by gRPC again.
    """
    context = cluster_tls.load(_files(settings)).follows
    found: dict[str, object] = {}
    with suppress(OSError, ssl.SSLError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream):
        with anyio.fail_after(NAMES_TIMEOUT_S):
            stream = await anyio.connect_tcp(host, port, tls=True, ssl_context=context, tls_standard_compatible=False)
            async with stream:
                found = cast("dict[str, object]", stream.extra(TLSAttribute.peer_certificate))
    names = cast("tuple[tuple[str, str], ...]", found.get("subjectAltName", ()))
    for _, name in names:
        return name
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", found.get("subject", ()))
    return next((value for each in subject for key, value in each if key == "commonName"), "")


def _files(settings: Settings) -> cluster_tls.TlsFiles:
    return cluster_tls.TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
