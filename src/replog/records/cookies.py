"""Changing a bookie's cookie: its bookie, an administrator and a client that declares it lost all may, by CAS (M1)."""

from __future__ import annotations

from collections.abc import Callable

from replog.abc import Metastore
from replog.errors import MetastoreUncertainError, VersionConflictError
from replog.records.bookies import Cookie, cookie_key, decode_cookie, encode_cookie


async def change_cookie(metastore: Metastore, bookie_id: str, change: Callable[[Cookie], Cookie]) -> Cookie:
    """Replaces a bookie's cookie by what `change` makes of it, and returns that. `change` is applied again if somebody else was
    faster, or if it is not known whether the cookie was written: so it sets fields, and counts nothing.

    Raises `KeyNotFoundError` if there is no such bookie, `MetastoreCorruptError`, `MetastoreError`. If cancelled, it may be
    changed."""
    key = cookie_key(bookie_id)
    while True:
        found = await metastore.get(key)
        cookie = decode_cookie(key, found.value)
        wanted = change(cookie)
        if wanted == cookie:
            return cookie
        try:
            await metastore.put(key, encode_cookie(wanted), found.version)
        # After a lost answer the cookie is read again: if it was written, `change` finds nothing left to do (M1). Each
        # conflict means that somebody else's change went through, so the loop makes progress.
        except (VersionConflictError, MetastoreUncertainError):
            continue
        return wanted
