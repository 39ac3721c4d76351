"""Which requests each role allows."""

from __future__ import annotations

from collections.abc import Collection

from replog.abc import Identity, Role
from replog.protocol import wire
from replog.protocol.messages import (
    AdminCommand,
    AdminRequest,
    MetastorePurpose,
    MetastoreRequest,
    RepairRequest,
    Request,
)

_NO_KIND = 256  # kinds of frames are of one byte
_OF_PURPOSE = {
    MetastorePurpose.MEMBER: (Role.MEMBER, "a member of the metastore"),
    MetastorePurpose.CLIENT: (Role.CLIENT, "a client"),
    MetastorePurpose.ADMIN: (Role.ADMIN, "an administrator"),
}


class Permissions:
    """The requests that one client may send. `checked_from` is the lowest kind of frame that needs a check: adds and
    reads of clients need none. Without an identity it may send everything."""

    __slots__ = ("_roles", "checked_from")

    def __init__(self, identity: Identity | None) -> None:
        self._roles = frozenset(Role) if identity is None else identity.roles
        self.checked_from = _NO_KIND
        if len(self._roles) < len(Role):
            self.checked_from = wire.ADMIN if Role.CLIENT in self._roles else wire.ADD

    def lack(self, request: Request) -> str:
        """Why the client may not make this request, or ""."""
        return lacking_role(self._roles, request)


def lacking_role(roles: Collection[Role], request: Request) -> str:
    """Why these roles do not allow the request, or ""."""
    # Who shows the ledger's key copies as a client. The bookie checks the key (B7).
    if isinstance(request, RepairRequest) and not request.key:
        return "" if Role.REPAIRER in roles else "this request needs the role of a repairer, or the ledger's password"
    if isinstance(request, MetastoreRequest):
        role, name = _OF_PURPOSE[request.purpose]
        return "" if role in roles else f"this request needs the role of {name}, which the identity does not have"
    if not isinstance(request, AdminRequest) or request.command is AdminCommand.LEDGER_DELETED:
        return (
            "" if Role.CLIENT in roles else "this request needs the role of a client, which the identity does not have"
        )
    is_allowed = request.command is AdminCommand.STATISTICS or Role.ADMIN in roles
    return "" if is_allowed else "this request needs the role of an administrator, which the identity does not have"
