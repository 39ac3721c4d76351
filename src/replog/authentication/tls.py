"""Authentication by mutual TLS: a client's certificate, signed by the bookie's authority, names the client."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.abc import Authenticator, Identity, Peer, Role
from replog.errors import AuthenticationError, ConfigError
from replog.hookspecs import Backend, hookimpl


@attrs.frozen
class TlsIdentityOptions:
    """For bookies. `clients`: names of which a certificate must have one; none given: every certificate that the
    authority signed. `administrators`: names that may connect too, and administer. `repairers`: names that may connect
    too, and repair ledgers whose password they do not know. `members`: names of bookies that keep
    a metastore together."""

    clients: tuple[str, ...] = ()
    administrators: tuple[str, ...] = ()
    repairers: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


class TlsIdentity(Authenticator):
    """Believes what TLS has verified. TLS itself proves both sides, so no message is exchanged here."""

    __slots__ = ("_administrators", "_clients", "_members", "_repairers")

    def __init__(self, options: TlsIdentityOptions) -> None:
        self._clients = frozenset(options.clients)
        self._administrators = frozenset(options.administrators)
        self._repairers = frozenset(options.repairers)
        self._members = frozenset(options.members)

    @property
    def mechanism(self) -> str:
        return "tls"

    @property
    def needs_certificates(self) -> bool:
        return True

    def respond(self, challenge: bytes, session: bytes) -> bytes:
        return b""

    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        names = peer.certificate_names
        if not names:
            problem = "no certificate with a name was shown: the client needs a tls_certificate_file"
            raise AuthenticationError(f"{problem}, and the bookie a tls_ca_file to verify it with")
        # An administrator's name wins over a client's, in any order of the certificate.
        for name in names:
            more = {
                Role.ADMIN: self._administrators,
                Role.REPAIRER: self._repairers,
                Role.MEMBER: self._members,
            }
            roles = frozenset(role for role, named in more.items() if name in named)
            if roles:
                return Identity(name, roles | {Role.CLIENT}), b""
        allowed = [name for name in names if name in self._clients or not self._clients]
        if not allowed:
            raise AuthenticationError(
                f"the certificate of {', '.join(names)} is in order, but that name may not connect to this bookie",
                detail="add it to the option `clients` of the bookie's authentication if it should",
            )
        return Identity(allowed[0], frozenset({Role.CLIENT})), b""

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        # TLS has verified the bookie's certificate, and its host's name.
        pass


@hookimpl
def replog_authenticators() -> Sequence[Backend[Authenticator]]:
    """Offers "tls"."""
    return [Backend("tls", _open, TlsIdentityOptions, summary="the names in certificates: mutual TLS")]


def _open(rest: str, options: TlsIdentityOptions) -> Authenticator:
    if rest:
        raise ConfigError(f"tls:{rest}: as authentication it has no address, only options, as tls:?administrators=ops")
    return TlsIdentity(options)
