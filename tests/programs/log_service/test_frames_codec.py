"""Both sides identify themselves, with certificates and a token by proofs; what is out of bounds is refused."""

from __future__ import annotations

import pytest
from holdfast_wire.v1 import logs_pb2 as wire

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.edges.peers.cluster_session import SessionError
from supervisor.programs.log_service import frames_codec
from supervisor.programs.log_service.frames_codec import Batch, Proofs, Terms, decode, encode

KNOWN = Proofs(b"0123456789abcdef", b"the caller's certificate")


def meet(caller: Proofs, called: Proofs, job_id: str = "job") -> str:
    answer, name = frames_codec.welcome(frames_codec.hello("job", "node 1", caller), job_id, called)
    frames_codec.check_welcome(answer, "job", "node 1", caller)
    return name


@pytest.mark.parametrize("proofs", [Proofs(), KNOWN])
def test_two_that_know_the_token_or_need_none_meet(proofs: Proofs):
    assert meet(proofs, proofs) == "node 1"


@pytest.mark.parametrize(
    ("caller", "called"),
    [
        (Proofs(b"another token of a job", KNOWN.certificate), KNOWN),
        (Proofs(), KNOWN),
        (KNOWN, Proofs()),
        (KNOWN, Proofs(KNOWN.token, b"of somebody who passes the hello on")),
    ],
)
def test_who_does_not_know_the_token_or_shows_another_certificate_is_refused(caller: Proofs, called: Proofs):
    with pytest.raises(SessionError, match="it does not know the job's token"):
        meet(caller, called)


def test_a_server_that_does_not_know_the_token_gets_nothing():
    for proofs in (Proofs(), Proofs(KNOWN.token, b"as another caller got it")):
        answer, _ = frames_codec.welcome(frames_codec.hello("job", "node 1", proofs), "job", proofs)
        with pytest.raises(SessionError, match="the log server does not know the job's token"):
            frames_codec.check_welcome(answer, "job", "node 1", KNOWN)
    with pytest.raises(SessionError, match="the log server does not know the job's token"):
        frames_codec.check_welcome(b"", "job", "node 1", Proofs())


def test_another_job_or_version_is_refused():
    with pytest.raises(SessionError, match="another job"):
        meet(Proofs(), Proofs(), job_id="other")
    old = wire.LogFrame(hello=wire.LogHello(version=1, job_id="job", caller="node 1")).SerializeToString()
    with pytest.raises(SessionError, match="another job or version than job, version 2"):
        frames_codec.welcome(old, "job", Proofs())


def test_a_batch_arrives_as_it_was_sent():
    up = Batch(pieces=[Piece(2**64 - 1, 7, 2, 3, b"a\nb\n"), Piece(5, 0, 0, 0, b"", True)], receipts=[], parts=True)
    assert decode(encode(up)) == up
    down = Batch(pieces=[], receipts=[Receipt(5, 9, True)], terms=Terms(4096, 0.025, "cannot write F: no space left"))
    assert decode(encode(down)) == down


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
    with pytest.raises(SessionError):
        decode(encode(Batch(pieces=[piece])))


def test_noise_is_refused():
    for noise in (b"\xff" * 40, b"", b"\x0a\xff"):
        with pytest.raises(SessionError):
            decode(noise)
        with pytest.raises(SessionError):
            frames_codec.welcome(noise, "job", KNOWN)
