"""Both sides prove that they know the token; changed, repeated or out-of-bounds data ends the connection."""

from __future__ import annotations

import pytest
from holdfast_wire.v1 import logs_pb2 as wire

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.edges.peers.cluster_session import SessionError
from supervisor.log_service.frames_codec import Batch, Called, Caller, Secrets, Session, Terms

TOKEN = b"0123456789abcdef"


def sessions(ours: bytes = TOKEN, theirs: bytes = TOKEN, *, seals: bool = True) -> tuple[Session, Session]:
    caller = Caller(Secrets(ours, seals), "job", "node 1")
    called = Called(Secrets(theirs, seals), "job")
    proof, session = caller.answer(called.challenge(caller.hello()))
    return session, called.admit(proof)


@pytest.mark.parametrize("seals", [True, False])
def test_a_batch_arrives_as_it_was_sent(seals: bool):
    node, leaf = sessions(seals=seals)
    up = Batch(pieces=[Piece(2**64 - 1, 7, 2, 3, b"a\nb\n"), Piece(5, 0, 0, 0, b"", True)], receipts=[], parts=True)
    assert leaf.peer == "node 1"
    assert leaf.decode(node.encode(up)) == up
    down = Batch(pieces=[], receipts=[Receipt(5, 9, True)], terms=Terms(4096, 0.025, "cannot write F: no space left"))
    assert node.decode(leaf.encode(down)) == down
    assert leaf.decode(node.encode(up)) == up


def test_who_does_not_know_the_token_is_refused_by_either_side():
    with pytest.raises(SessionError, match="the log server does not know the job's token"):
        sessions(theirs=b"another token of a job")
    called = Called(Secrets(TOKEN, seals=True), "job")
    called.challenge(Caller(Secrets(b"", seals=True), "job", "node 1").hello())
    with pytest.raises(SessionError, match="it does not know the job's token"):
        called.admit(wire.LogFrame(proof=wire.LogProof(proof=b"guess")).SerializeToString())
    with pytest.raises(SessionError, match="does not know"):
        Called(Secrets(TOKEN, seals=True), "job").admit(b"")  # without a hello
    with pytest.raises(SessionError, match="another job"):
        Called(Secrets(TOKEN, seals=True), "other").challenge(Caller(Secrets(TOKEN, seals=True), "job", "n").hello())


def test_a_challenge_that_is_sent_back_proves_nothing():
    called = Called(Secrets(TOKEN, seals=True), "job")
    challenge = wire.LogFrame.FromString(called.challenge(Caller(Secrets(TOKEN, seals=True), "job", "n").hello()))
    with pytest.raises(SessionError):
        called.admit(wire.LogFrame(proof=wire.LogProof(proof=challenge.challenge.proof)).SerializeToString())


def test_what_was_changed_or_comes_twice_ends_the_connection():
    node, leaf = sessions()
    sealed = node.encode(Batch(pieces=[Piece(1, 1, 0, 0, b"a\n")]))
    leaf.decode(sealed)
    with pytest.raises(SessionError, match="not from the other side"):
        leaf.decode(sealed)
    node, leaf = sessions()
    changed = bytearray(node.encode(Batch(pieces=[Piece(1, 1, 0, 0, b"a\n")])))
    changed[-1] ^= 1
    with pytest.raises(SessionError):
        leaf.decode(bytes(changed))
    with pytest.raises(SessionError):
        leaf.decode(wire.LogFrame(plain=b"").SerializeToString())


@pytest.mark.parametrize(
    "piece",
    [
        Piece(1, 2**31, 0, 0, b"a\n"),
        Piece(1, 1, 9, 0, b"a\n"),
        Piece(1, 1, 0, 0, b"x" * 2**20 + b"\n"),
        Piece(1, 1, 0, 0, b"half a line"),
    ],
)
def test_a_piece_out_of_bounds_is_refused(piece: Piece):
    node, leaf = sessions()
    with pytest.raises(SessionError):
        leaf.decode(node.encode(Batch(pieces=[piece])))


def test_noise_is_refused():
    for noise in (b"\xff" * 40, b"", b"\x0a\xff"):
        with pytest.raises(SessionError):
            Called(Secrets(TOKEN, seals=True), "job").challenge(noise)
