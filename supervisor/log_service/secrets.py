"""With which secrets do the processes of the log server authenticate? Those of the job's cluster stream."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
from anyio.streams.tls import TLSAttribute

from supervisor.edges.peers import cluster_tls
from supervisor.edges.peers.job_secrets import read_token
from supervisor.log_service.frames_codec import Secrets
from supervisor.log_service.settings import Settings

if TYPE_CHECKING:
    import grpc

NAMES_TIMEOUT_S = 5.0


def secrets_of(settings: Settings) -> Secrets:
    """Reads the secrets. Blocks on the disk. Raises ConfigurationError."""
    if settings.tls_cert:
        cluster_tls.load(_files(settings))  # refuses the same files for the same reasons
    token = read_token(Path(settings.token_file)) if settings.token_file else b""
    return Secrets(token, seals=bool(token) and not settings.tls_cert)


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Returns the credentials; None without TLS."""
    if not settings.tls_cert:
        return None
    import grpc

    key, certificate, authority = _pem(settings)
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)


def channel_credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    """Returns the credentials; None without TLS."""
    if not settings.tls_cert:
        return None
    import grpc

    key, certificate, authority = _pem(settings)
    return grpc.ssl_channel_credentials(authority, key, certificate)


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


def _pem(settings: Settings) -> tuple[bytes, bytes, bytes]:
    key, certificate, authority = (
        Path(each).read_bytes() for each in (settings.tls_key, settings.tls_cert, settings.tls_ca)
    )
    return key, certificate, authority
