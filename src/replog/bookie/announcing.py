"""Announcing a bookie: where it can be reached, its labels, and whether it takes new entries (B5). Advice, never safety (M3).

A bookie that becomes read-only or begins to drain, or is writable again, is announced under its new key before it
leaves the old one, so no client finds it absent. It is announced only when no other process is announced under its id.
A process that was killed stays announced until its lease or session ends; one that is alive serves a copy of the same
directory, which is forbidden (B4). An announcement under the lock that this bookie's storage holds now was made by a
process that is gone: it is deleted at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    StorageInUseError,
    VersionConflictError,
)
from replog.records.bookies import BookieAddress, Endpoint, announcement_key, decode_address, encode_address
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery

_log = logger("replog.bookie")

_AGAIN_S = 1.0  # after the metastore failed
_LOOK_S = 0.5  # for whether the other has gone
_CHECK_S = 15.0  # for whether it is still announced: somebody may have deleted the key


class _Held:
    """One announcement, while `scope` is not cancelled and `ended` not set."""

    def __init__(self, key: str, mode: tuple[bool, bool, str]) -> None:
        self.key = key
        self.mode = mode
        self.scope = trio.CancelScope()
        self.ended = trio.Event()


class Announcer:
    """Keeps one bookie announced."""

    def __init__(
        self,
        server: BookieServer,
        metastore: Metastore,
        endpoints: Sequence[Endpoint],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._metastore = metastore
        self._endpoints = tuple(endpoints)
        self._labels = dict(labels or {})
        self._lock: str | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Announces the bookie until cancelled; started once it is announced.

        Raises `MetastoreError` if it can't be announced at first, `StorageInUseError` if another process has its id and
        does not go within `announce_timeout_s`; later it is announced again as soon as that works."""
        # It tells whether an announcement was made in this same directory, by a process that is gone.
        self._lock = await self._server.call(self._server.storage.lock_name)
        async with open_service_nursery() as nursery:
            held = await self._first(nursery)
            task_status.started()
            while True:
                await self._wait_turned_or_lost(held)
                # The next one has the same key if this one was lost, or if a bookie that drains becomes read-only: then this
                # one would be in its way.
                if held.key == self._key():
                    await _end(held)
                try:
                    # The new announcement exists before the old one goes: no client finds the bookie absent.
                    following = await nursery.start(self._hold)
                except MetastoreError:
                    await trio.sleep(_AGAIN_S)
                    continue
                await _end(held)
                held = following

    async def _first(self, nursery: trio.Nursery) -> _Held:
        deadline_s = trio.current_time() + self._server.options.announce_timeout_s
        is_reported = False
        deleted: set[tuple[str, bytes]] = set()
        while True:
            found = await self._find_other()
            if found is None:
                try:
                    held: _Held = await nursery.start(self._hold)
                except KeyExistsError as error:
                    other = f"by no process that is seen to live (key {error.key!r} exists all the same)"
                else:
                    return held
            else:
                if found not in deleted and await self._delete_dead(*found):
                    deleted.add(found)
                    continue
                other = _place(*found)
            if trio.current_time() >= deadline_s:
                raise self._in_use(other)
            if not is_reported:
                text = "bookie %s is announced already, %s: waiting until that is gone, for %g s at most"
                bookie_id, timeout_s = self._server.bookie_id, self._server.options.announce_timeout_s
                _log.warning(text, bookie_id, other, timeout_s, extra={"bookie": bookie_id})
                is_reported = True
            # A killed process stays announced until its lease or session ends, so this is the usual case after a kill.
            await trio.sleep(min(_LOOK_S, max(0.0, deadline_s - trio.current_time())))

    def _in_use(self, other: str) -> StorageInUseError:
        return StorageInUseError(
            f"bookie {self._server.bookie_id} is announced, {other}, and that did not end in "
            f"{self._server.options.announce_timeout_s:g} s",
            "Another process serves a copy of this directory: end it, and keep only the copy that was served last. Nothing "
            "was touched",
        )

    async def _find_other(self) -> tuple[str, bytes] | None:
        """Key and value of an announcement under this id; None if there is none."""
        for read_only in (True, False):
            key = announcement_key(self._server.bookie_id, read_only=read_only)
            value = await self._announced(key)
            if value is not None:
                return key, value
        return None

    async def _announced(self, key: str) -> bytes | None:
        parent, _, word = key.rpartition("/")
        return (await self._metastore.announced(parent)).get(word)

    async def _delete_dead(self, key: str, value: bytes) -> bool:
        """Deletes announcements under the lock that this bookie holds now. Returns False if there is none, or if the
        metastore keeps announcements in its own way. A copy of the directory, or one on another machine, has another
        lock."""
        if self._lock is None or _lock_of(key, value) != self._lock:
            return False
        try:
            # In this order: if it changed between the two, the version is too old, and nothing is deleted.
            version = (await self._metastore.get(key)).version
            if await self._announced(key) == value:  # it is this version's
                await self._metastore.delete(key, version)
        except (KeyNotFoundError, VersionConflictError, MetastoreUncertainError):
            # It changes, or is kept elsewhere: as with everybody else's.
            return False
        return True

    async def _wait_turned_or_lost(self, held: _Held) -> None:
        async with trio.open_nursery() as nursery:

            async def wait_lost() -> None:
                await held.ended.wait()
                nursery.cancel_scope.cancel()

            async def wait_missing() -> None:
                await self._wait_missing(held)
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_lost)
            nursery.start_soon(wait_missing)
            await self._server.mode.turned(was=held.mode)
            nursery.cancel_scope.cancel()

    async def _wait_missing(self, held: _Held) -> None:
        """Returns when the bookie was missing twice: once may be a session that follows another one."""
        parent, _, word = held.key.rpartition("/")
        times_missing = 0
        while times_missing < 2:
            await trio.sleep(_CHECK_S)
            with suppress(MetastoreError):  # then it is looked at again
                times_missing = 0 if word in await self._metastore.announced(parent) else times_missing + 1

    def _key(self) -> str:
        return announcement_key(self._server.bookie_id, read_only=any(self._server.mode.all))

    def _value(self) -> bytes:
        """Says also why it takes no new entries (B10)."""
        failure, (read_only, is_draining, metastore_problem) = self._server.failure, self._server.mode.all
        error = (failure or self._server.space.error) if read_only else None
        problem, has_failed = metastore_problem if error is None else str(error), failure is not None
        return encode_address(
            BookieAddress(
                self._endpoints,
                read_only or bool(metastore_problem),
                self._lock,
                problem,
                has_failed,
                self._labels,
                is_draining,
                bool(metastore_problem),
                self._server.guard.ledgers_below,
            )
        )

    async def _hold(self, task_status: trio.TaskStatus[_Held]) -> None:
        """Announces the bookie until the scope that it starts with is cancelled, or the metastore fails. Raises
        `MetastoreError` if that could not be begun."""
        held = _Held(self._key(), self._server.mode.all)
        is_begun = False
        try:
            with held.scope:
                async with self._metastore.announce(held.key, self._value()):
                    is_begun = True
                    task_status.started(held)
                    await trio.sleep_forever()
        except MetastoreError:
            if not is_begun:
                raise
        finally:
            held.ended.set()


async def _end(held: _Held) -> None:
    held.scope.cancel()
    await held.ended.wait()


def _lock_of(key: str, value: bytes) -> str | None:
    try:
        return decode_address(key, value).lock
    except MetastoreCorruptError:
        return None


def _place(key: str, value: bytes) -> str:
    try:
        endpoints = decode_address(key, value).endpoints
    except MetastoreCorruptError as error:
        return f"by something else ({error})"
    return f"at {', '.join(map(str, endpoints))}" if endpoints else f"without a way to it (key {key!r})"
