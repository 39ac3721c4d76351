"""A bookie's nodes in a BookKeeper cluster: its cookie, and where it is registered while it serves.

- The cookie says which bookie has ever been there (B4). It is written once. A storage that has ledgers, and whose cookie is gone,
  is of a bookie that was decommissioned, or of another cluster: it does not serve.
- The cookie's version is a counter that this bookie raises before it drops anything, and knows (B6a): a lower one means that the
  metadata went back to an earlier state.
- A bookie that becomes read-only, or writable again, is registered in the other place before it leaves the one that it had.
"""

from __future__ import annotations

import attrs
import trio
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from replog.abc import Sighting, Versioned
from replog.bookie.server import BookieServer
from replog.errors import (
    KeyNotFoundError,
    MetastoreDoubtedError,
    MetastoreError,
    StorageIdentityError,
    StorageInUseError,
    VersionConflictError,
)
from replog.runtime.host_ports import parse_address
from replog.runtime.loggers import logger
from replog_bookkeeper.bookies import AVAILABLE, COOKIES, PROTOCOL, READ_ONLY
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import INSTANCE
from replog_bookkeeper.schema import data

_log = logger("replog.bookkeeper")

_COOKIE_VERSION = b"5\n"
_ENDPOINT = "bookie"
_LOCK = "replog.lock"  # the property by which a bookie knows what a process before it left
_AGAIN_S = 1.0


class Registration:
    """The nodes of one bookie."""

    def __init__(self, root: LedgersRoot, server: BookieServer, directory: str) -> None:
        self._root = root
        self._server = server
        self._directory = directory
        self._lock: str | None = None
        bookie_id = server.bookie_id
        self._cookie_key = f"{COOKIES}/{bookie_id}"
        self._keys = f"{AVAILABLE}/{bookie_id}", f"{AVAILABLE}/{READ_ONLY}/{bookie_id}"  # writable, read-only

    # -- the cookie -----------------------------------------------------------------------------------------------------

    async def begin(self, *, after_restore: bool = False) -> None:
        """Checks that this bookie may serve in this cluster, and writes its cookie if it is new. With `after_restore`, an
        operator says that the metadata is right as it is, although the bookie has seen a later state of it (B6a).

        Raises `StorageIdentityError` if it may not serve, `MetastoreError`, `StorageError`."""
        storage = self._server.storage
        self._lock = await self._server.call(storage.lock_name)
        instance_id = await self._instance_id()
        seen = await self._server.call(storage.sighting)
        if seen.token not in ("", instance_id):
            raise self._foreign(f"it belongs to the cluster {seen.token}, and this one is {instance_id}")
        try:
            found: Versioned = await self._root.get(self._cookie_key)
        except KeyNotFoundError:
            held = await self._server.call(storage.ledger_ids)
            if (seen.token or held) and not after_restore:
                problem = "it has ledgers, and no cookie here: it was decommissioned, or is another cluster's"
                raise self._foreign(problem) from None
            version = await self._root.create(self._cookie_key, self._cookie(instance_id))
        else:
            self._check(found, instance_id)
            version = found.version
        if version < seen.times_raised and not after_restore:
            self._doubt(version, seen)  # it serves all the same, and drops nothing
        else:
            await self._server.call(lambda: storage.keep_sighting(Sighting(instance_id, version)))

    async def _instance_id(self) -> str:
        return (await self._root.get(INSTANCE)).value.decode(errors="replace")

    def _cookie(self, instance_id: str) -> bytes:
        cookie = data["CookieFormat"](
            bookieHost=self._server.bookie_id,
            journalDir=self._directory,
            ledgerDirs=f"1\t{self._directory}",
            instanceId=instance_id,
        )
        text: str = text_format.MessageToString(cookie)
        return _COOKIE_VERSION + text.encode()

    def _check(self, found: Versioned, instance_id: str) -> None:
        cookie = data["CookieFormat"]()
        try:
            text_format.Parse(found.value.removeprefix(_COOKIE_VERSION), cookie, allow_unknown_field=True)
        except (text_format.ParseError, DecodeError) as error:
            raise self._foreign(f"its cookie cannot be read: {error}") from error
        if cookie.bookieHost != self._server.bookie_id or cookie.instanceId != instance_id:
            raise self._foreign(f"its cookie is of {cookie.bookieHost} in the cluster {cookie.instanceId}")

    def _foreign(self, problem: str) -> StorageIdentityError:
        return StorageIdentityError(
            f"bookie {self._server.bookie_id} does not serve in this cluster: {problem} (B4)",
            "Start a new bookie in an empty directory, or name the cluster of this one. If its metadata was restored from a time "
            "before this bookie, start it once with --after-restore. Nothing was touched",
        )

    def _doubt(self, version: int, seen: Sighting) -> MetastoreDoubtedError:
        """The bookie doubts its metadata from now on: it is read-only, and takes part in no recovery."""
        problem = f"the cookie of this bookie was raised {version} times, and had been {seen.times_raised} times"
        if self._server.mode.turn(metastore_problem=problem):
            _log.error(
                "bookie %s drops nothing, and takes part in no recovery: %s. Its metadata went back: put the right one back, or "
                "start the bookie once with --after-restore",
                self._server.bookie_id,
                problem,
            )
        return MetastoreDoubtedError(f"bookie {self._server.bookie_id} doubts its metadata: {problem} (B6a)")

    async def raise_counter(self) -> None:
        """Checks that the cluster is the one that this bookie knows, and not an earlier state of it; and raises the counter.

        Raises `MetastoreDoubtedError` if not: then nothing may be dropped; `MetastoreError`, `StorageError`."""
        seen = await self._server.call(self._server.storage.sighting)
        found = await self.check(seen)
        version = await self._root.put(self._cookie_key, found.value, found.version)
        self._server.mode.turn(metastore_problem="")
        await self._server.call(lambda: self._server.storage.keep_sighting(attrs.evolve(seen, times_raised=version)))

    async def check(self, seen: Sighting | None = None) -> Versioned:
        """Compares the cluster with what this bookie knows of it; returns its cookie. Raises as `raise_counter`."""
        if seen is None:
            seen = await self._server.call(self._server.storage.sighting)
        instance_id = await self._instance_id()
        try:
            found = await self._root.get(self._cookie_key)
        except KeyNotFoundError:
            problem = f"bookie {self._server.bookie_id} has no cookie any more: it drops nothing (B6a)"
            raise MetastoreDoubtedError(problem) from None
        if instance_id != seen.token:
            raise MetastoreDoubtedError(f"bookie {self._server.bookie_id}: this is the cluster {instance_id} (B6a)")
        if found.version < seen.times_raised:
            raise self._doubt(found.version, seen)
        return found

    # -- while it serves --------------------------------------------------------------------------------------------------

    async def run(self, address: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the bookie registered until cancelled; started once it is.

        Raises `StorageInUseError` if another process is registered under its id, and stays; `MetastoreError` at first."""
        value, mode = self._info(address), self._server.mode
        await self._wait_until_free()
        is_first = True
        async with trio.open_nursery() as nursery:
            held: trio.CancelScope | None = None
            while True:
                was = mode.all
                try:
                    following: trio.CancelScope = await nursery.start(self._hold, self._key(), value)
                except MetastoreError as error:
                    if is_first:
                        raise
                    _log.warning("bookie %s is not registered yet: %s", self._server.bookie_id, error)
                    await trio.sleep(_AGAIN_S)
                    continue
                if held is not None:
                    held.cancel()
                held = following
                if is_first:
                    is_first = False
                    task_status.started()
                key = self._key()
                while self._key() == key:
                    await mode.turned(was)
                    was = mode.all

    async def _hold(
        self, key: str, value: bytes, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.CancelScope() as scope:
            async with self._root.announce(key, value):
                task_status.started(scope)
                await trio.sleep_forever()

    def _key(self) -> str:
        return self._keys[any(self._server.mode.all)]

    def _info(self, address: str) -> bytes:
        host, port = parse_address(address)
        info = data["BookieServiceInfoFormat"]()
        info.endpoints.add(id=_ENDPOINT, host=host, port=port, protocol=PROTOCOL)
        if self._lock is not None:
            info.properties.add(key=_LOCK, value=self._lock)
        return bytes(info.SerializeToString())

    async def _wait_until_free(self) -> None:
        """Waits until no other process is registered under this id: one that was killed is, until its session ends. One that held
        the lock of this storage is gone."""
        timeout_s = self._server.options.announce_timeout_s
        deadline_s = trio.current_time() + timeout_s
        for key in self._keys:
            while True:
                try:
                    found = await self._root.get(key)
                    if self._lock is not None and _lock_of(found.value) == self._lock:
                        await self._root.delete(key, found.version)
                        break
                except (KeyNotFoundError, VersionConflictError):
                    break
                if trio.current_time() >= deadline_s:
                    problem = f"bookie {self._server.bookie_id} is registered ({key}), and that did not end in {timeout_s:g} s"
                    raise StorageInUseError(problem, "Another process serves a copy of this directory: end it")
                await trio.sleep(_AGAIN_S)


def _lock_of(value: bytes) -> str | None:
    try:
        info = data["BookieServiceInfoFormat"].FromString(value)
    except DecodeError:
        return None
    return next((each.value for each in info.properties if each.key == _LOCK), None)
