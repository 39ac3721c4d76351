"""No authentication: any client may connect. Clients on the same machine may also administer."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.abc import Authenticator, Identity, Peer, Role
from replog.hookspecs import Backend, hookimpl


@attrs.frozen
class NothingOptions:
    """`administer_from_anywhere`: clients on other machines may administer, too."""

    administer_from_anywhere: bool = False


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
        may_administer = peer.is_local or self._options.administer_from_anywhere
        return Identity("anybody", frozenset(Role) if may_administer else frozenset({Role.CLIENT})), b""

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        pass


@hookimpl
def replog_authenticators() -> Sequence[Backend[Authenticator]]:
    """Offers "none"."""
    return [Backend("none", _open, NothingOptions, summary="everybody may connect")]


def _open(rest: str, options: NothingOptions) -> Authenticator:
    return NoAuthentication(options)
