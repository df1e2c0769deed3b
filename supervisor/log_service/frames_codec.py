"""How do pieces and receipts travel between the log server's processes, and how do both sides authenticate?

Sans-I/O. Without TLS, each message carries a MAC over a counter (seals.py), with keys derived from the job's
token and both sides' fresh nonces. With TLS, or if a job on one machine has no token, messages carry no MAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from google.protobuf.message import DecodeError
from holdfast_wire.v1 import logs_pb2 as wire

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.edges.peers.cluster_session import SessionError
from supervisor.log_service import seals
from supervisor.log_service.seals import Keys, Seal

VERSION = 1
METHOD = "/holdfast.v1.LogFunnel/Pass"
SERVICE, CALL = "holdfast.v1.LogFunnel", "Pass"
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
LINES_BYTES_MAX = 1024 * 1024  # of one piece
FILE_MAX = 10_000_000
NAME_CHARACTERS_MAX = 256


class Terms(msgspec.Struct, frozen=True):
    """How much may be sent ahead of receipts, how long lines are gathered, and why receipts are late."""

    window_bytes: int
    pause_s: float = 0.0
    trouble: str = ""


class Batch(msgspec.Struct, frozen=True):
    pieces: Sequence[Piece] = ()
    receipts: Sequence[Receipt] = ()
    terms: Terms | None = None
    parts: bool = False


class Secrets(msgspec.Struct, frozen=True):
    """The secrets of a process. `token` b"": none. `seals`: messages carry a MAC."""

    token: bytes
    seals: bool


class Session:
    """One connection after the handshake."""

    def __init__(self, ours: Seal | None, theirs: Seal | None, peer: str) -> None:
        self._ours = ours
        self._theirs = theirs
        self.peer = peer

    def encode(self, batch: Batch) -> bytes:
        payload = _batch(batch).SerializeToString()
        if self._ours is None:
            return wire.LogFrame(plain=payload).SerializeToString()
        return wire.LogFrame(sealed=self._ours.close(payload, number=0, received=0)).SerializeToString()

    def decode(self, data: bytes) -> Batch:
        """Decodes a message. Raises SessionError."""
        frame = _frame(data)
        if self._theirs is None:
            if frame.WhichOneof("part") != "plain":
                raise SessionError("its messages are sealed, and ours are not; start all nodes with the same secrets")
            payload = frame.plain
        else:
            payload, _, _ = self._theirs.open(frame.sealed)
        try:
            return _unpacked(wire.LogBatch.FromString(payload))
        except DecodeError as error:
            raise SessionError("a message can't be read") from error


class Caller:
    """The side that connects: it sends `hello`, then answers the challenge with `answer`."""

    def __init__(self, secrets: Secrets, job_id: str, name: str) -> None:
        self._secrets = secrets
        self._job_id = job_id
        self._name = name
        self._nonce = seals.fresh_nonce()

    def hello(self) -> bytes:
        hello = wire.LogHello(version=VERSION, job_id=self._job_id, caller=self._name, nonce=self._nonce)
        return wire.LogFrame(hello=hello).SerializeToString()

    def answer(self, data: bytes) -> tuple[bytes, Session]:
        """Returns the data to send, and the new session. Raises SessionError."""
        challenge = _frame(data).challenge
        token, bound = self._secrets.token, _bound(self._job_id, self._name, self._nonce, challenge.nonce)
        if not seals.is_proof(challenge.proof, token, "leader", *bound):
            raise SessionError("the log server does not know the job's token; give all nodes the same token_file")
        frame = wire.LogFrame(proof=wire.LogProof(proof=seals.proof(token, "node", *bound)))
        keys = _keys(self._secrets, challenge.nonce, self._nonce)
        session = Session(Seal(keys.to_leader), Seal(keys.to_node), "") if keys else Session(None, None, "")
        return frame.SerializeToString(), session


class Called:
    """The side that accepts: it answers a hello with `challenge`, then checks the proof with `admit`."""

    def __init__(self, secrets: Secrets, job_id: str) -> None:
        self._secrets = secrets
        self._job_id = job_id
        self._nonce = seals.fresh_nonce()
        self._bound: tuple[bytes, ...] = ()
        self._caller_nonce = b""
        self._peer = ""

    def challenge(self, data: bytes) -> bytes:
        """Returns the challenge. Raises SessionError."""
        hello = _frame(data).hello
        if hello.version != VERSION or hello.job_id != self._job_id or len(hello.caller) > NAME_CHARACTERS_MAX:
            raise SessionError(f"it is for another job or version than {self._job_id}, version {VERSION}")
        if len(hello.nonce) != seals.NONCE_BYTES:
            raise SessionError("its nonce has the wrong length")
        self._peer, self._caller_nonce = hello.caller, hello.nonce
        self._bound = _bound(self._job_id, hello.caller, hello.nonce, self._nonce)
        proof = seals.proof(self._secrets.token, "leader", *self._bound)
        return wire.LogFrame(challenge=wire.LogChallenge(nonce=self._nonce, proof=proof)).SerializeToString()

    def admit(self, data: bytes) -> Session:
        """Checks the proof and returns the session. Raises SessionError."""
        given = _frame(data).proof.proof
        if not self._bound or not seals.is_proof(given, self._secrets.token, "node", *self._bound):
            raise SessionError("it does not know the job's token; give all nodes the same token_file")
        keys = _keys(self._secrets, self._nonce, self._caller_nonce)
        if keys is None:
            return Session(None, None, self._peer)
        return Session(Seal(keys.to_node), Seal(keys.to_leader), self._peer)


def _keys(secrets: Secrets, called_nonce: bytes, caller_nonce: bytes) -> Keys | None:
    return seals.derive_keys(secrets.token, called_nonce, caller_nonce) if secrets.seals else None


def _bound(job_id: str, caller: str, caller_nonce: bytes, called_nonce: bytes) -> tuple[bytes, ...]:
    """Returns what a proof covers. A proof for the cluster's own stream is not valid here."""
    return b"holdfast log funnel 1", job_id.encode(), caller.encode(), caller_nonce, called_nonce


def _frame(data: bytes) -> wire.LogFrame:
    try:
        return wire.LogFrame.FromString(data)
    except DecodeError as error:
        raise SessionError("a message can't be read") from error


def _batch(batch: Batch) -> wire.LogBatch:
    return wire.LogBatch(
        pieces=map(_piece, batch.pieces),
        receipts=_receipts(batch.receipts),
        terms=_terms(batch.terms) if batch.terms is not None else None,
        parts=batch.parts,
    )


def _piece(piece: Piece) -> wire.LogPiece:
    return wire.LogPiece(
        stream=piece.stream,
        file=piece.file,
        base=piece.base,
        position=piece.position,
        lines=piece.lines,
        ends=piece.ends,
    )


def _receipts(receipts: Iterable[Receipt]) -> list[wire.LogReceipt]:
    return [wire.LogReceipt(stream=each.stream, position=each.position, ended=each.ended) for each in receipts]


def _terms(terms: Terms) -> wire.LogTerms:
    return wire.LogTerms(window_bytes=terms.window_bytes, pause_ms=round(terms.pause_s * 1000), trouble=terms.trouble)


def _unpacked(batch: wire.LogBatch) -> Batch:
    pieces = [Piece(each.stream, each.file, each.base, each.position, each.lines, each.ends) for each in batch.pieces]
    for piece in pieces:
        if piece.file > FILE_MAX or piece.base > piece.position or len(piece.lines) > LINES_BYTES_MAX:
            raise SessionError(f"a piece is out of bounds: file {piece.file}, {len(piece.lines)} bytes")
        if piece.lines and not piece.lines.endswith(b"\n"):
            raise SessionError("a piece does not end with its line")
    return Batch(
        pieces=pieces,
        receipts=[Receipt(each.stream, each.position, each.ended) for each in batch.receipts],
        terms=Terms(batch.terms.window_bytes, batch.terms.pause_ms / 1000, batch.terms.trouble)
        if batch.HasField("terms")
        else None,
        parts=batch.parts,
    )
