"""With which certificates do the members of the job's own etcd, and the job's nodes, trust each other?

With those of the job, if it has some. If all it has is a token, the token yields an authority, which signs one for each
node. etcd's members compare the address in each other's certificate, so it must be there.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path

import msgspec

from supervisor.edges.machine.own_process.kernel_error_remedies import is_passing
from supervisor.edges.peers.transport.cluster_tls import TlsFiles
from supervisor.edges.peers.transport.token_certificate import VALID_FROM, VALID_UNTIL, derived
from supervisor.errors import ConfigurationError

PURPOSE = b"holdfast etcd authority 1"
NAME = "the etcd of a job of Holdfast"


class MemberFiles(msgspec.Struct, frozen=True):
    """PEM files that etcd reads."""

    certificate: str
    key: str
    authority: str


def given(files: TlsFiles, host: str) -> MemberFiles:
    """Returns the job's own files. Blocks on the disk. Raises ConfigurationError if they are of no use for etcd."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = names.get_values_for_type(x509.IPAddress)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        if is_passing(error):
            raise
        addresses = []
    if ipaddress.ip_address(host) not in addresses:
        raise ConfigurationError(
            f"cannot use {files.certificate} for --rdzv-conf members=3: it does not name this node's address {host}, "
            f"which etcd's members compare; add subjectAltName=IP:{host} to the certificate"
        )
    return MemberFiles(files.certificate, files.key, files.authority)


def from_token(token: bytes, host: str, folder: Path) -> MemberFiles:
    """Writes this node's certificate, its key and the authority. Blocks on the disk. Raises OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    signing, authority = derived(token, PURPOSE, NAME)
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a node of the job")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    serial = x509.random_serial_number()
    certificate = (
        x509.CertificateBuilder(authority.subject, subject, key.public_key(), serial, VALID_FROM, VALID_UNTIL)
        .add_extension(names, critical=False)
        .sign(signing, None)
    )
    contents = {
        "certificate.pem": certificate.public_bytes(Encoding.PEM),
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "authority.pem": authority.public_bytes(Encoding.PEM),
    }
    for name, content in contents.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
    return MemberFiles(*(str(folder / name) for name in contents))


def context(files: MemberFiles) -> ssl.SSLContext:
    """Returns how a node trusts the members, and what it shows them. Names are not compared, as between nodes."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.set_alpn_protocols(["h2"])
    made.load_verify_locations(files.authority)
    made.load_cert_chain(files.certificate, files.key, password="")
    return made
