"""The seam of authenticators: how clients and bookies prove their identities."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

import attrs


class Role(enum.Enum):
    """The rights of an authenticated client."""

    CLIENT = "client"  # write, read, recover; each ledger also needs its password (B7)
    REPAIRER = "repairer"  # read and store copies of any ledger's batches, without its password
    ADMIN = "admin"  # ask a bookie to collect garbage, compact, scrub; change the members of a metastore
    MEMBER = "member"  # take part in the metastore that the bookies' processes keep


@attrs.frozen
class Peer:
    """The facts that a bookie's transport knows of a client before authentication.

    `address` is for people. `certificate_names` are the names in a client certificate that TLS has verified, () without
    one."""

    address: str
    is_local: bool = False  # on the same machine
    certificate_names: tuple[str, ...] = ()


@attrs.frozen
class Identity:
    """An authenticated client."""

    name: str
    roles: frozenset[Role]


class Authenticator(ABC):
    """Proves a client's identity to a bookie, and the bookie's to the client: one round of challenge, response and proof.

    One object serves both sides and any number of connections; it keeps no state between two calls. All methods are called
    in the trio thread and must not block. `session` is a digest of the messages before and of the TLS session: different
    for each connection, and the same at both ends. Signatures must cover it: then an attacker can neither replay a recorded
    message nor relay one.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The name of the mechanism; client and bookie must use the same one."""

    @property
    def needs_certificates(self) -> bool:
        """True if this needs certificates of both sides, verified by TLS: without them, a transport refuses to start."""
        return False

    def challenge(self) -> bytes:
        """The bookie's challenge; b"" if the session is enough."""
        return b""

    @abstractmethod
    def respond(self, challenge: bytes, session: bytes) -> bytes:
        """The client's answer. Raises `AuthenticationError`."""

    @abstractmethod
    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        """The client's identity, and the proof of the bookie's. Called by the bookie.

        Raises `AuthenticationError`. The client receives its text, which must not help an attacker who guesses."""

    @abstractmethod
    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        """Checks the bookie's proof. Called by the client. Raises `AuthenticationError`."""
