"""Announcements: keys that etcd deletes itself when nobody has renewed their lease for a while.

Rules: each announcement has a lease of its own, whose id is chosen here: so it can be revoked whatever became of the answer
that granted it, and with it goes every key that was put under it, also by a request that is still on its way (etcd refuses a
put under a lease that is gone). The lease id tells one's own key (M1). All of this is advice (M3).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from replog.abc import open_service_nursery
from replog.errors import KeyExistsError, MetastoreError, MetastoreUncertainError, ReplogError
from replog_etcd.errors import EtcdRefusedError
from replog_etcd.gateway import Gateway
from replog_etcd.records import Layout, Record
from replog_etcd.refusals import NOT_FOUND

_RENEWALS_PER_LEASE = 3
_RETRIES_PER_LEASE = 20
_FAREWELL_S = 2.0


@attrs.define
class Held:
    """Keys that are announced together, and the lease they are under now."""

    lease_id: int
    values: dict[str, bytes]


class Leases:
    """The announcements of one client."""

    def __init__(self, gateway: Gateway, layout: Layout, lease_s: float) -> None:
        self._gateway = gateway
        self._layout = layout
        self._lease_s = lease_s

    @asynccontextmanager
    async def hold(self, key: str, value: bytes) -> AsyncIterator[Held]:
        """Keeps the key in existence while the context is open. Raises `KeyExistsError`, `MetastoreError`: then it is not
        announced, or gone after the lease."""
        # The id is chosen here, before the request: the lease can be revoked even if the answer is lost.
        held = Held(_new_lease_id(), {})
        try:
            await self._grant(held)
            await self.add(held, key, value)
            async with open_service_nursery() as nursery:
                nursery.start_soon(self._renew, held)
                yield held
        finally:
            await self._revoke(held)

    async def add(self, held: Held, key: str, value: bytes) -> None:
        """One more key under the same lease. Raises `KeyExistsError`, `MetastoreError`."""
        try:
            other = await self._put_if_absent(held, key, value)
        except MetastoreUncertainError:
            other = await self._put_if_absent(held, key, value)  # the second time it is found, or done
        if other is not None:
            raise KeyExistsError(key, "another client announces it")
        held.values[key] = value

    async def _put_if_absent(self, held: Held, key: str, value: bytes) -> Record | None:
        """Whose key is in the way, None if nobody's."""
        message = {
            "compare": [self._layout.is_absent(key)],
            "success": [self._layout.put(key, value, held.lease_id)],
            "failure": [self._layout.look(key)],
        }
        answer = await self._gateway.call(
            "/v3/kv/txn",
            message,
            what=f"announcing key {key!r}",
            is_change=True,
            timeout_s=self._lease_s / _RENEWALS_PER_LEASE,
        )
        if answer.get("succeeded"):
            return None
        found = self._layout.looked(answer)
        return found if found is not None and found.lease_id != held.lease_id else None

    async def _grant(self, held: Held) -> None:
        message = {"ID": str(held.lease_id), "TTL": str(math.ceil(self._lease_s))}
        try:
            await self._gateway.call("/v3/lease/grant", message, what="asking for a lease")
        except EtcdRefusedError as error:
            if "lease already exists" not in str(error):  # granted by an attempt whose answer was lost
                raise

    async def _renew(self, held: Held) -> None:
        """Runs until cancelled. A lease or key that was lost is made again; another client that took the key keeps it."""
        pause_s = self._lease_s / _RENEWALS_PER_LEASE
        while True:
            await trio.sleep(pause_s)
            try:
                await self._renew_once(held)
                pause_s = self._lease_s / _RENEWALS_PER_LEASE
            except ReplogError:
                # Soon again; etcd deletes the keys if that goes on.
                pause_s = self._lease_s / _RETRIES_PER_LEASE

    async def _renew_once(self, held: Held) -> None:
        message = {"ID": str(held.lease_id)}
        answer = await self._gateway.call(
            "/v3/lease/keepalive", message, what="renewing a lease", timeout_s=self._lease_s / _RENEWALS_PER_LEASE
        )
        if answer.get("result", {}).get("TTL", "0") == "0":  # it is over
            # Before it is granted: then it is revoked at the end in any case.
            held.lease_id = _new_lease_id()
            await self._grant(held)
        # An operator, or a lease that ended for a moment, may have deleted a key.
        for key, value in held.values.items():
            await self._put_if_absent(held, key, value)

    async def _revoke(self, held: Held) -> None:
        """In vain if etcd can't be reached: then all is gone after the lease."""
        farewell = trio.CancelScope(shield=True, deadline=trio.current_time() + _FAREWELL_S)
        with farewell, suppress(MetastoreError, trio.ClosedResourceError):
            try:
                await self._gateway.call("/v3/lease/revoke", {"ID": str(held.lease_id)}, what="revoking a lease")
            except EtcdRefusedError as error:
                if error.code != NOT_FOUND:  # it was over already
                    raise


def _new_lease_id() -> int:
    return secrets.randbelow((1 << 63) - 1) + 1
