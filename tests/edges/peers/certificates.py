"""Certificates of the test's own authority, made with the openssl program. Elliptic curves make that fast."""

from __future__ import annotations

import subprocess
from pathlib import Path

from supervisor.edges.peers.transport.cluster_tls import TlsFiles

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def make_authority(place: Path, name: str = "ca") -> Path:
    _openssl(place, f"req -x509 {_KEY} -keyout {name}.key -out {name}.pem -subj /CN={name} -days 2")
    return place / f"{name}.pem"


def make_node(
    place: Path, name: str = "node", *, authority: str = "ca", has_expired: bool = False, address: str = ""
) -> TlsFiles:
    """`address`: the certificate's IP address; "" for none, since clients that check none need none."""
    _openssl(place, f"req {_KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}")
    (place / "names.cnf").write_text(f"subjectAltName=IP:{address}\n" if address else "")
    if has_expired:
        _sign_for_the_past(place, name, authority)
    else:
        signer = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
        _openssl(place, f"x509 -req -in {name}.csr {signer} -out {name}.pem -days 2 -extfile names.cnf")
    (place / f"{name}.key").chmod(0o600)
    return TlsFiles(str(place / f"{name}.pem"), str(place / f"{name}.key"), str(place / f"{authority}.pem"))


def _sign_for_the_past(place: Path, name: str, authority: str) -> None:
    """Only the program's own small authority accepts dates in every version."""
    (place / "index.txt").write_text("")
    (place / "serial").write_text("1000\n")
    (place / "past.cnf").write_text(
        "[ca]\ndefault_ca=own\n[own]\nnew_certs_dir=.\ndatabase=index.txt\nserial=serial\ndefault_md=sha256\n"
        "policy=any\n[any]\ncommonName=supplied\n"
    )
    _openssl(
        place,
        f"ca -batch -config past.cnf -in {name}.csr -cert {authority}.pem -keyfile {authority}.key -out {name}.pem "
        "-startdate 20200101000000Z -enddate 20200102000000Z -notext -extfile names.cnf",
    )


def _openssl(place: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=place, check=True, capture_output=True)
