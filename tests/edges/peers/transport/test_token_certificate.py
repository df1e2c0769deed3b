"""One token yields one certificate, the same bytes everywhere; without the library, the remedy is named."""

from __future__ import annotations

import hashlib
import sys

import pytest

from supervisor.edges.peers.transport.token_certificate import pem_of
from supervisor.errors import ConfigurationError

TOKEN = b"a token of the test"
SHA256 = "d8670ee04aa58fb45c11c21bcedd6c739bd505007c53c57e799532fe9abfe09d"


def test_all_processes_and_versions_of_the_library_make_the_same_certificate_of_a_token():
    """If this fails with a newer library, nodes with different versions of it do not trust each other."""
    assert hashlib.sha256(pem_of(TOKEN)).hexdigest() == SHA256
    assert pem_of(TOKEN + b"!") != pem_of(TOKEN)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigurationError, match="the package cryptography is missing; run pip install"):
        pem_of(TOKEN)
