"""Who may ask a bookie for what."""

from __future__ import annotations

from collections.abc import Collection

from replog.abc import Role
from replog.protocol.messages import AdminCommand, AdminRequest, Request


def lacking_role(roles: Collection[Role], request: Request) -> str:
    """Why somebody with these roles may not ask that, or ""."""
    if not isinstance(request, AdminRequest):
        return "" if Role.CLIENT in roles else "only a client may ask that: the identity has no such role"
    is_allowed = request.command is AdminCommand.STATISTICS or Role.ADMIN in roles
    return "" if is_allowed else "only an administrator may ask that: the identity has no such role"
