"""How does a node of a job prove that it belongs to the job, and why can nobody else read or change what nodes say?

By TLS 1.3, in which both sides show a certificate: the one that the job's token yields (token_certificate.py), or, if
files are given, one of the cluster's own authority. Any holder of one may join, and names are not compared, since nodes
meet by address. The files are read when the job begins, and again when two sides do not trust each other: a certificate
may have expired in a long job, and have been renewed on the disk.

A handshake costs the leader one or two milliseconds of CPU, in threads of its own (tls_handshakes.py). A third of it
went into session tickets. So the leader keeps the sessions itself, and a node that comes back within two hours resumes
its own at a fifth of the cost.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import msgspec
from holdfast_wire import private_files, regular_file

from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from supervisor.edges.peers.transport import token_certificate
from supervisor.edges.peers.transport.tls_handshakes import Handshakes
from supervisor.errors import ConfigurationError

RECORD_BYTES_MAX = 16 * 1024  # of one record, so that none is taken in part
EARLY_BYTES_MAX = 256 * 1024  # that arrive while a step of the handshake is computed
READ_AGAIN_S = 1.0  # the files may be on a disk that does not answer, and the next attempt must not be late

_log = logging.getLogger("holdfast.cluster")


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files of this node and of the authority."""

    certificate: str
    key: str
    authority: str


class Tls(msgspec.Struct):
    """The contexts for both sides of a connection."""

    leads: ssl.SSLContext
    follows: ssl.SSLContext
    token: bytes = b""  # of the job; b"": none, so a certificate is enough
    is_from_token: bool = False  # the certificates, so they prove that a side knows the token
    files: TlsFiles | None = None  # None: the certificates are from the token
    states: tuple[tuple[int, ...], ...] = ()  # of the files as they were read: see _states
    reading: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    threads: SideThreads = msgspec.field(default_factory=lambda: SideThreads(stuck_max=1))  # by a dead disk


def token_of(tls: Tls | None) -> bytes:
    return tls.token if tls is not None else b""


def load(files: TlsFiles) -> Tls:
    """Loads the files. Blocks on the disk. Raises ConfigurationError."""
    certificate, key, authority = Path(files.certificate), Path(files.key), Path(files.authority)
    for option, path in (("tls_cert", certificate), ("tls_key", key), ("tls_ca", authority)):
        _check_readable(option, path)
    states = _states(files)
    if fault := private_files.secret_fault(key, key.stat()):
        raise ConfigurationError(f"cannot use the key {key} of tls_key: {fault}")
    tls = _both(lambda context: _use_files(context, certificate, key, authority))
    tls.files, tls.states = files, states
    return tls


async def read_again(tls: Tls | None) -> None:
    """Reads files that have changed, for the next connections. Does nothing without files, or if they can't be used.

    Waits READ_AGAIN_S at most. Files that answer later are then used, too.
    """
    if tls is None or tls.files is None:
        return
    read = partial(_read_again, tls, tls.files)
    with anyio.move_on_after(READ_AGAIN_S):
        async with tls.reading:
            try:
                await tls.threads.call(read, timeout_s=READ_AGAIN_S, discard=lambda _: None)
            except StuckError:
                pass  # An earlier call reads them once their disk answers.
            except (ConfigurationError, OSError) as error:  # A file may be half written.
                _log.warning("the certificate stays as it was when the job began: %s", error)


def _read_again(tls: Tls, files: TlsFiles) -> None:
    if _states(files) == tls.states:
        return  # Contexts that are kept keep their sessions.
    fresh = load(files)
    tls.leads, tls.follows, tls.states = fresh.leads, fresh.follows, fresh.states


def _states(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
    found = [os.stat(path) for path in (files.certificate, files.key, files.authority)]
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def from_token(token: bytes) -> Tls:
    """Makes the certificate that the token yields. Takes tens of milliseconds. Raises ConfigurationError."""
    pem = token_certificate.pem_of(token)
    try:
        with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb", buffering=0) as file:  # never on a disk
            file.write(pem)
            path = f"/proc/self/fd/{file.fileno()}"

            def use(context: ssl.SSLContext) -> None:
                context.load_cert_chain(path)
                context.load_verify_locations(path)

            return msgspec.structs.replace(_both(use), token=token, is_from_token=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot use the job's token: its certificate can't be loaded: {error}; check that /proc is mounted, or "
            "write tls_cert, tls_key and tls_ca"
        ) from error


def _both(use: Callable[[ssl.SSLContext], None]) -> Tls:
    """Makes the contexts of both sides. `use` gives a context its certificates."""
    tls = Tls(_context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT))
    tls.leads.options |= ssl.OP_NO_TICKET  # in TLS 1.3, a ticket then only names a session that the leader keeps
    tls.leads.num_tickets = 1
    use(tls.leads)
    use(tls.follows)
    return tls


def _check_readable(option: str, path: Path) -> None:
    try:
        regular_file.opened(path, follows=True).close()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the file {path} of {option}: {error.strerror}; check --rdzv-conf"
        ) from error


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _use_files(context: ssl.SSLContext, certificate: Path, key: Path, authority: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        is_pair = "KEY_VALUES_MISMATCH" not in str(error)
        why = "they are not PEM files without a password" if is_pair else "they do not belong together"
        raise ConfigurationError(f"cannot use {certificate} with the key {key}: {why}; check --rdzv-conf") from error
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"cannot use {authority} of tls_ca: it is not a PEM file; check --rdzv-conf"
        ) from error


class Pipe:
    """TLS between a line's frames and its connection. Sans-I/O; every method may raise ssl.SSLError."""

    def __init__(
        self,
        tls: Tls,
        *,
        leads: bool,
        session: ssl.SSLSession | None = None,
        handshakes: Handshakes | None = None,
    ) -> None:
        """`session`: of the previous connection; the other side may have forgotten it. `handshakes` compute the steps
        of the handshake; None: `read` computes them itself."""
        self.leads = leads
        self._of = tls
        context = tls.leads if leads else tls.follows
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        wrap = partial(context.wrap_bio, self._incoming, self._outgoing, server_side=leads)
        try:
            self._tls = wrap(session=session)
        except ValueError:  # It is of the context before `read_again`.
            self._tls = wrap()
        self._waiting: list[bytes] | None = []  # data sent before the two sides trust each other; None: they do
        self._handshakes = handshakes
        self.is_computing = False  # a thread uses the TLS object and both buffers; nothing else touches them
        self._arrived = bytearray()  # meanwhile
        self._error: BaseException | None = None  # of the last step

    def write(self, data: bytes) -> None:
        if self._waiting is None:
            self._tls.write(data)
        else:
            self._waiting.append(data)

    def read(self, sealed: bytes, on_step: Callable[[], None] | None = None) -> bytes:
        """Decrypts data; b"" begins the handshake on the node's side. Raises ssl.SSLZeroReturnError at the end.

        `on_step` is called once a step of the handshake that this data has begun is computed; then call `go_on`.
        """
        if self.is_computing:
            self._arrived += sealed
            if len(self._arrived) > EARLY_BYTES_MAX:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "it sends too much before the handshake is done")
            return b""
        self._incoming.write(sealed)
        if self._waiting is None:
            return self._decrypted()
        if self._handshakes is not None:
            self.is_computing = True
            self._handshakes.compute(self._tls.do_handshake, partial(self._end_step, on_step))
            return b""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return b""
        return self._begin()

    def _end_step(self, on_step: Callable[[], None] | None, error: BaseException | None) -> None:
        self.is_computing, self._error = False, error
        if on_step is not None:
            on_step()

    def go_on(self, on_step: Callable[[], None] | None = None) -> bytes:
        """Continues after a step of the handshake; returns what `read` would. `on_step`: after the next one."""
        error, self._error = self._error, None
        if error is not None and not isinstance(error, ssl.SSLWantReadError):
            raise error
        said = self._begin() if error is None else b""
        arrived, self._arrived = bytes(self._arrived), bytearray()
        return said + self.read(arrived, on_step) if arrived else said

    def _begin(self) -> bytes:
        """Sends and returns what has waited for the end of the handshake."""
        waiting, self._waiting = self._waiting or (), None
        for data in waiting:
            self._tls.write(data)
        return self._decrypted()

    def _decrypted(self) -> bytes:
        """Returns what the arrived records contain. A leader does this for each heartbeat."""
        incoming, said = self._incoming, b""
        try:
            while incoming.pending:  # without this check, each message would cost an exception
                more = self._tls.read(RECORD_BYTES_MAX)
                if not more:
                    raise ssl.SSLZeroReturnError
                said = said + more if said else more
        except ssl.SSLWantReadError:
            pass  # the rest of a record has not come yet
        return said

    def part(self) -> None:
        """Ends TLS properly: OpenSSL drops the session of a connection that just breaks."""
        if self._waiting is None:
            with suppress(ssl.SSLError):  # The other side is rarely there to answer.
                self._tls.unwrap()

    @property
    def session(self) -> ssl.SSLSession | None:
        """Returns the session for the next connection to the same leader; complete once anything was read."""
        return self._tls.session if self._waiting is None else None

    @property
    def is_resumed(self) -> bool:
        return bool(self._tls.session_reused)

    def proof(self, side: str) -> bytes:
        """Returns the proof of `side` that it knows the token, beside its certificate; b"" if none is needed.

        It holds for this connection alone: it covers the last message of the handshake, which covers all the others.
        """
        if self._of.is_from_token or not self._of.token:
            return b""
        handshake = self._tls.get_channel_binding("tls-unique") or b""
        return hmac.digest(self._of.token, b"holdfast cluster proof 2 " + side.encode() + b" " + handshake, "sha256")

    def judge(self, error: ssl.SSLError) -> tuple[bool, str]:
        """Returns whether it shows that the sides do not trust each other, and says why the connection ends."""
        reasons = _REASONS_OF_TOKENS if self._of.is_from_token else _REASONS_OF_FILES
        if isinstance(error, ssl.SSLCertVerificationError):
            return True, reasons[_NOT_VERIFIED].format(error.verify_message)
        text = str(error)
        for sign, meaning in reasons.items():
            if sign in text:
                return True, meaning
        reason = cast("str | None", getattr(error, "reason", None))  # our own errors have none
        return False, f"TLS fails: {(reason or text).lower().replace('_', ' ')}"

    def outgoing(self) -> bytes:
        """Returns the data to send now, also after an error: it tells the other side."""
        return b"" if self.is_computing else self._outgoing.read()


class LeadersTls:
    """The side of a leader or relay: threads compute the handshakes. `tls` None: there is no TLS."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._handshakes = Handshakes() if tls is not None else None

    def pipe(self) -> Pipe | None:
        """Returns a new pipe; None: without TLS."""
        return Pipe(self._tls, leads=True, handshakes=self._handshakes) if self._tls is not None else None

    async def read_again(self) -> None:
        await read_again(self._tls)

    def close(self) -> None:
        if self._handshakes is not None:
            self._handshakes.close()


_NOT_VERIFIED = "certificate verify failed"
_REASONS_OF_FILES = {
    _NOT_VERIFIED: "its certificate is not accepted: {}; check tls_ca, and when it expires",
    "CERTIFICATE_EXPIRED": "it does not accept our certificate, which has expired; renew tls_cert",
    "UNKNOWN_CA": "it does not accept our certificate, which is of another authority; check tls_cert and tls_ca",
    "CERTIFICATE_REQUIRED": "it asks for a certificate; write tls_cert, tls_key and tls_ca in --rdzv-conf",
    "BAD_CERTIFICATE": "it does not accept our certificate; check tls_cert",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate; give all nodes tls_cert, tls_key and tls_ca",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; give all nodes tls_cert, tls_key and tls_ca, or none",
}
_REASONS_OF_TOKENS = {
    _NOT_VERIFIED: "it does not know the job's token; give all nodes the same token_file",
    "UNKNOWN_CA": "it has another token than this node; give all nodes the same token_file",
    "CERTIFICATE_REQUIRED": "it asks for a certificate; give all nodes tls_cert, tls_key and tls_ca, or none",
    "BAD_CERTIFICATE": "it has another token than this node; give all nodes the same token_file",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate; give all nodes the same token_file",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; give all nodes the same token_file and version of Holdfast",
}
