"""An authority and its certificates, as ZooKeeper and its clients want them."""

from __future__ import annotations

from pathlib import Path

import attrs
import trustme
from cryptography.hazmat.primitives import serialization

from tests.servers.zookeeper import ServerTls

HOST_NAME = "localhost"


@attrs.frozen
class Certificates:
    """Files in PEM: of the authority, the server (for "localhost" and 127.0.0.1), a client, and a client whom nobody trusts."""

    authority: Path
    server: ServerTls
    client_certificate: Path
    client_key: Path
    stranger_certificate: Path
    stranger_key: Path


def make_certificates(directory: Path, *, clients_need_certificate: bool = True) -> Certificates:
    """Makes them below this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    authority, others = trustme.CA(), trustme.CA()
    trusted = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    identity = directory / "server.pem"
    _identity(authority.issue_cert(HOST_NAME, "127.0.0.1"), identity)
    client, client_key = _client(authority, directory / "client")
    stranger, stranger_key = _client(others, directory / "stranger")
    server = ServerTls(identity=identity, trusted=trusted, clients_need_certificate=clients_need_certificate)
    return Certificates(trusted, server, client, client_key, stranger, stranger_key)


def _identity(certificate: trustme.LeafCert, path: Path) -> None:
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    pem = key.private_bytes(  # Java reads PKCS #8 alone
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(pem + b"".join(each.bytes() for each in certificate.cert_chain_pems))


def _client(authority: trustme.CA, stem: Path) -> tuple[Path, Path]:
    made = authority.issue_cert("client.replog.test")
    certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
    certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return certificate, key
