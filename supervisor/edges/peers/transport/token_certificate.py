"""Which certificate do the processes of a job show each other if all they share is a token?

All of them show the same one. Its key is derived from the token, so only those who know the token have it.
The library makes the same bytes from the same token, on any machine and at any time: a process trusts exactly this
certificate, and clocks play no part.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from supervisor.errors import ConfigurationError

PURPOSE = b"holdfast cluster certificate 1"
NAME = "a job of Holdfast"
VALID_FROM, VALID_UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # any clock is in it
SERIAL_NUMBER = 1

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate


def pem_of(token: bytes) -> bytes:
    """Returns the private key and the certificate. Raises ConfigurationError if the library is missing."""
    key, certificate = derived(token, PURPOSE, NAME)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def derived(token: bytes, purpose: bytes, name: str) -> tuple[Ed25519PrivateKey, Certificate]:
    """Returns the key that the token yields for a purpose, and the certificate of the authority that has it.

    Raises ConfigurationError if the library is missing.
    """
    try:  # Only here: a job on one node does without the library.
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ConfigurationError(
            "cannot use the job's token: the package cryptography is missing; run pip install "
            "'holdfast-torch[supervisor]', or write tls_cert, tls_key and tls_ca"
        ) from error
    key = Ed25519PrivateKey.from_private_bytes(HKDF(SHA256(), 32, None, purpose).derive(token))
    owner = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(owner, owner, key.public_key(), SERIAL_NUMBER, VALID_FROM, VALID_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    return key, certificate
