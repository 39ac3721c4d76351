"""Which requests each role allows."""

from __future__ import annotations

from collections.abc import Collection

from replog.abc import Role
from replog.protocol.messages import AdminCommand, AdminRequest, Request


def lacking_role(roles: Collection[Role], request: Request) -> str:
    """Why these roles do not allow the request, or ""."""
    if not isinstance(request, AdminRequest):
        return (
            "" if Role.CLIENT in roles else "this request needs the role of a client, which the identity does not have"
        )
    is_allowed = request.command is AdminCommand.STATISTICS or Role.ADMIN in roles
    return "" if is_allowed else "this request needs the role of an administrator, which the identity does not have"
