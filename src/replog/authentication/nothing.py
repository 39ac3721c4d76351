"""No authentication: any client may connect. Clients on the same machine may also administer."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.abc import Authenticator, Identity, Peer, Role
from replog.hookspecs import Backend, hookimpl


@attrs.frozen
class NothingOptions:
    """`administer_from_anywhere`: clients on other machines may administer, too. `repair_locally`: clients on the same machine
    may copy ledgers whose password they do not know; ledgers without a password are repaired by any client."""

    administer_from_anywhere: bool = False
    repair_locally: bool = False


class NoAuthentication(Authenticator):
    """Nobody proves anything."""

    __slots__ = ("_options",)

    def __init__(self, options: NothingOptions) -> None:
        self._options = options

    @property
    def mechanism(self) -> str:
        return "none"

    def respond(self, challenge: bytes, session: bytes) -> bytes:
        return b""

    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        roles = {Role.CLIENT, Role.MEMBER}  # without proofs, a member is like any other
        if peer.is_local or self._options.administer_from_anywhere:
            roles.add(Role.ADMIN)
        if peer.is_local and self._options.repair_locally:
            roles.add(Role.REPAIRER)
        return Identity("anybody", frozenset(roles)), b""

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        pass


@hookimpl
def replog_authenticators() -> Sequence[Backend[Authenticator]]:
    """Offers "none"."""
    return [Backend("none", _open, NothingOptions, summary="everybody may connect")]


def _open(rest: str, options: NothingOptions) -> Authenticator:
    return NoAuthentication(options)
