"""One token yields one certificate, the same bytes everywhere; without the library, the remedy is named."""

from __future__ import annotations

import hashlib
import sys

import pytest
from cryptography import x509

from supervisor.edges.peers.token_certificate import pem_of, process_pem_of
from supervisor.errors import ConfigurationError

TOKEN = b"a token of the test"
SHA256 = "d8670ee04aa58fb45c11c21bcedd6c739bd505007c53c57e799532fe9abfe09d"


def test_all_processes_and_versions_of_the_library_make_the_same_certificate_of_a_token():
    """If this fails with a newer library, nodes with different versions of it do not trust each other."""
    assert hashlib.sha256(pem_of(TOKEN)).hexdigest() == SHA256
    assert pem_of(TOKEN + b"!") != pem_of(TOKEN)


def test_the_certificate_of_a_process_is_signed_with_the_tokens():
    one, another = process_pem_of(TOKEN), process_pem_of(TOKEN)
    assert one.authority == another.authority
    assert one.authority in pem_of(TOKEN)
    assert one.key != another.key
    x509.load_pem_x509_certificate(one.certificate).verify_directly_issued_by(
        x509.load_pem_x509_certificate(another.authority)
    )


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigurationError, match="the package cryptography is missing; run pip install"):
        pem_of(TOKEN)
