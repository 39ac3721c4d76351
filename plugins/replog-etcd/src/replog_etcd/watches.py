"""Waiting for changes: by a watch from the revision that was read, so that nothing falls between.

A wait never fails because etcd can't be reached: it reads again. It reads again, too, when etcd has forgotten the revision
(compaction), and every `watch_renewal_s`, since a connection can die unheard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from replog_etcd.errors import EtcdUnreachableError
from replog_etcd.gateway import Gateway
from replog_etcd.listing import list_below
from replog_etcd.options import EtcdOptions
from replog_etcd.records import Layout, Record, revision_of

_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
_POLL_S = 0.5  # where there are more waits than may have a connection

Look = Callable[[], Awaitable[int | None]]  # None: it is so already; else the revision at which it is not
Concerns = Callable[[bool, Record], bool]  # whether this matters: whether the key was deleted, and the record


class Watches:
    """The waits of one client."""

    def __init__(self, gateway: Gateway, layout: Layout, options: EtcdOptions) -> None:
        self._gateway = gateway
        self._layout = layout
        self._renewal_s = options.watch_renewal_s
        self._slots = trio.Semaphore(options.watches_max)

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns soon after the key has another version (None: after it exists)."""
        message = {"key": self._layout.encode(key)}

        async def look() -> int | None:
            asked = {**message, "keys_only": True}
            answer = await self._gateway.call("/v3/kv/range", asked, what=f"waiting for key {key!r}")
            found = answer.get("kvs", ())
            current = self._layout.record(found[0]).version if found else None
            return revision_of(answer) if current == version else None

        await self._wait(look, message, lambda _is_deleted, _record: True, f"key {key!r}")

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns soon after the words below the key may be others than these."""
        message = {"key": self._layout.encode(key, "/"), "range_end": self._layout.encode(key, "0")}
        words = set(known)

        async def look() -> int | None:
            listing = await list_below(self._gateway, self._layout, key)
            return listing.revision if list(listing.words) == list(known) else None

        def concerns(is_deleted: bool, record: Record) -> bool:
            word = record.key[len(key) + 1 :].partition("/")[0]
            # A known word matters when it may have gone, another one when it comes; new values do not change the list.
            return is_deleted if word in words else not is_deleted

        await self._wait(look, message, concerns, f"what is below {key!r}")

    async def _wait(self, look: Look, message: Mapping[str, Any], concerns: Concerns, what: str) -> None:
        pause_s = _PAUSE_S
        with self._gateway.in_use():
            while True:
                try:
                    revision = await look()
                    if revision is None:
                        return
                    with trio.move_on_after(self._renewal_s):
                        await self._watch({**message, "start_revision": str(revision + 1)}, concerns, what)
                    pause_s = _PAUSE_S
                except EtcdUnreachableError:
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _watch(self, message: Mapping[str, Any], concerns: Concerns, what: str) -> None:
        """Returns when it is time to look again."""
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            await trio.sleep(_POLL_S)
            return
        try:
            async with self._gateway.stream(
                "/v3/watch", {"create_request": message}, what=f"watching {what}"
            ) as answers:
                while True:
                    answer = await answers.receive()
                    # etcd has forgotten what followed this revision: only a new look tells.
                    if "compact_revision" in answer:
                        return
                    if answer.get("canceled"):
                        problem = answer.get("cancel_reason", "the server ends it")
                        raise EtcdUnreachableError(f"{self._gateway.target}: watching {what}: {problem}")
                    for event in answer.get("events", ()):
                        if concerns(event.get("type") == "DELETE", self._layout.record(event["kv"])):
                            return
        finally:
            self._slots.release()
