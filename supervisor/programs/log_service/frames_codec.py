"""How do pieces and receipts travel between the log server's processes, and how do both sides identify themselves?

Sans-I/O. TLS protects the connections (secrets.py), unless a job on one machine has no secrets. With certificates and a
token, both sides also prove that they know the token: for the caller's certificate, so that nobody else can use it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import msgspec
from google.protobuf.message import DecodeError
from holdfast_wire.v1 import logs_pb2 as wire

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.edges.peers.cluster_session import SessionError

VERSION = 2
METHOD = "/holdfast.v1.LogFunnel/Pass"
SERVICE, CALL = "holdfast.v1.LogFunnel", "Pass"
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
LINES_BYTES_MAX = 1024 * 1024  # of one piece
FILE_MAX = 10_000_000
NAME_CHARACTERS_MAX = 256
CALLER, CALLED = "caller", "called"


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


class Proofs(msgspec.Struct, frozen=True):
    """What both sides of one connection prove. `token` b"": nothing."""

    token: bytes = b""
    certificate: bytes = b""  # the caller's

    def of(self, side: str, job_id: str, caller: str) -> bytes:
        if not self.token:
            return b""
        parts = (b"holdfast log server 2", side.encode(), job_id.encode(), caller.encode(), self.certificate)
        text = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
        return hmac.digest(self.token, text, "sha256")


def hello(job_id: str, caller: str, proofs: Proofs) -> bytes:
    """Returns the caller's first message."""
    said = wire.LogHello(version=VERSION, job_id=job_id, caller=caller, proof=proofs.of(CALLER, job_id, caller))
    return wire.LogFrame(hello=said).SerializeToString()


def check_welcome(data: bytes, job_id: str, caller: str, proofs: Proofs) -> None:
    """Checks the answer to a hello. Raises SessionError."""
    frame = _frame(data)
    expected = proofs.of(CALLED, job_id, caller)
    if not frame.HasField("welcome") or not hmac.compare_digest(frame.welcome.proof, expected):
        raise SessionError("the log server does not know the job's token; give all nodes the same token_file")


def welcome(data: bytes, job_id: str, proofs: Proofs) -> tuple[bytes, str]:
    """Returns the answer to a hello, and the caller's name. Raises SessionError."""
    said = _frame(data).hello
    if said.version != VERSION or said.job_id != job_id or len(said.caller) > NAME_CHARACTERS_MAX:
        raise SessionError(f"it is for another job or version than {job_id}, version {VERSION}")
    if not hmac.compare_digest(said.proof, proofs.of(CALLER, job_id, said.caller)):
        raise SessionError("it does not know the job's token; give all nodes the same token_file")
    answer = wire.LogFrame(welcome=wire.LogWelcome(proof=proofs.of(CALLED, job_id, said.caller)))
    return answer.SerializeToString(), said.caller


def encode(batch: Batch) -> bytes:
    return wire.LogFrame(batch=_batch(batch)).SerializeToString()


def decode(data: bytes) -> Batch:
    """Decodes a message. Raises SessionError."""
    frame = _frame(data)
    if not frame.HasField("batch"):
        raise SessionError("a message can't be read")
    return _unpacked(frame.batch)


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
