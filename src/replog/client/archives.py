"""The archives of a cluster, as one client knows them: their records, and their stores, each opened when it is first needed.

A store is used only if its cookie is the one that the record names (B4): an empty or a foreign bucket would say of each entry
that it is not there.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import trio

from replog.abc import Archive, StoredObject
from replog.client.ledger_records import LedgerRecords
from replog.errors import ArchiveError, ConfigError, KeyNotFoundError, MetastoreError, VersionConflictError
from replog.protocol.archived import ObjectName, copy_prefix
from replog.records.archives import COOKIE_NAME, ArchiveRecord, decode_archive
from replog.records.paths import ARCHIVES_KEY, archive_key_path
from replog.runtime.entropy import current_entropy
from replog.runtime.loggers import logger
from replog.runtime.threads import current_threads

_log = logger("replog.client")

_CALLS_AT_ONCE = 16
_DELETING_S = 30.0  # for the objects of one ledger
_PAGE_OBJECTS = 1000
_COOKIE_BYTES_MAX = 4096
_CLOCK_PREFIX = "clock/"  # of objects that only tell the time

Answer = TypeVar("Answer")


class OpenedArchive:
    """An archive whose cookie was found right."""

    def __init__(self, record: ArchiveRecord, store: Archive, calls: trio.CapacityLimiter) -> None:
        self.record = record
        self.store = store
        self._calls = calls

    async def call(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Calls a function of the store in a thread. If cancelled, the call goes on there."""
        run = current_threads().run
        return await run(function, *arguments, abandon_on_cancel=True, limiter=self._calls)

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        """The objects whose names begin so, some at a time. Raises `ArchiveError`."""
        found = self.store.objects(prefix)
        while page := await self.call(lambda: list(itertools.islice(found, _PAGE_OBJECTS))):
            yield page

    async def copy(self, ledger_id: int, copy: str) -> list[tuple[ObjectName, StoredObject]]:
        """The objects of one copy, in the order of their entries. Raises `ArchiveError`."""
        found = [
            (name, each)
            async for page in self.pages(copy_prefix(ledger_id, copy))
            for each in page
            if (name := ObjectName.parse(each.name)) is not None
        ]
        return sorted(found, key=lambda each: each[0].first_entry_id)

    async def store_time_s(self, token: str) -> float:
        """The time by the store's clock, in s since the epoch: that of an object that is written for it. Raises
        `ArchiveError`."""
        name = f"{_CLOCK_PREFIX}{token}"
        await self.call(self.store.put, name, [b"The time.\n"])
        found = [each async for page in self.pages(_CLOCK_PREFIX) for each in page]
        await self.call(self.store.delete, [name])
        return max(each.modified_at_s for each in found)

    async def cookie(self) -> bytes | None:
        """The cookie in the store. Raises `ArchiveError`."""
        found = await self.call(self.store.read, COOKIE_NAME, 0, _COOKIE_BYTES_MAX)
        return None if found is None else bytes(found)

    async def check(self) -> None:
        """Raises `ArchiveError` unless the store has the cookie that the record names (B4)."""
        cookie = await self.cookie()
        if cookie == self.record.cookie():
            return
        if cookie is None:
            what, remedy = "has no cookie: it was emptied, or is not mounted", "Put the right one back"
        else:
            what, remedy = (
                "has the cookie of another archive, or of another cluster",
                "Put the right one back; a new archive takes another prefix",
            )
        raise self.problem(f"its store {what} (B4): it is not used. {remedy}")

    def problem(self, what: str) -> ArchiveError:
        """An error about this archive."""
        return ArchiveError(self.store.shown(), what)


class Archives:
    """The archives of one client's cluster. `open_store` makes what a URL names."""

    def __init__(self, records: LedgerRecords, open_store: Callable[[str], Archive]) -> None:
        self._records = records
        self._open_store = open_store
        self._calls = trio.CapacityLimiter(_CALLS_AT_ONCE)
        self._opened: dict[str, OpenedArchive] = {}

    async def add(self, url: str) -> ArchiveRecord:
        """Makes an archive of the store at this URL, or finds the one that it is: puts a cookie there. Raises `ArchiveError` if
        the store has another's cookie, or has lost its own, or does not keep conditions; `ConfigError`, `MetastoreError`.
        Adding again is harmless."""
        store, entropy = self._open_store(url), current_entropy()
        record = await self._begun(url, store)
        if record is None:
            record = ArchiveRecord(entropy.token(8), url, entropy.token(), is_unfinished=True)
        opened = OpenedArchive(record, store, self._calls)
        if record.is_unfinished and await opened.cookie() is None:
            await self._records.create_key(archive_key_path(record.archive_id), record.encoded())
            await opened.call(store.put, COOKIE_NAME, [record.cookie()])
            # Another client may have put its cookie before: then it is the archive of both.
            record = await self._begun(url, store) or record
            opened = OpenedArchive(record, store, self._calls)
        await opened.check()
        if await opened.call(store.put, COOKIE_NAME, [record.cookie()]):
            raise opened.problem("its store replaces objects that exist: use one that can create without replacing")
        return await self._finished(record)

    async def list(self) -> Sequence[ArchiveRecord]:
        """The archives that were added, sorted by URL. Raises `MetastoreError`."""
        return [each for each in await self._all() if not each.is_unfinished]

    async def _all(self) -> Sequence[ArchiveRecord]:
        metastore = self._records.metastore
        found = await self._records.read("listing archives", lambda: metastore.values(ARCHIVES_KEY))
        return sorted((decode_archive(word, each.value) for word, each in found.items()), key=lambda each: each.url)

    async def _begun(self, url: str, store: Archive) -> ArchiveRecord | None:
        """The record of the archive with this URL: the finished one, whatever is in its store. Without one, of those that were
        begun, the one whose cookie is in the store; any of them, if it has none."""
        found = [each for each in await self._all() if each.url == url]
        for each in found:
            if not each.is_unfinished:
                return each
        cookie = await OpenedArchive(found[0], store, self._calls).cookie() if found else None
        return next((each for each in found if cookie in (None, each.cookie())), None)

    async def _finished(self, record: ArchiveRecord) -> ArchiveRecord:
        """From now on a store without its cookie is refused: it was emptied, or is not mounted. Others that were begun with this
        URL can never be finished."""
        finished = attrs.evolve(record, is_unfinished=False)
        if record.is_unfinished:
            key, metastore = archive_key_path(record.archive_id), self._records.metastore
            found = await self._records.read(f"reading archive {record.archive_id}", lambda: metastore.get(key))
            with suppress(VersionConflictError):  # another client has added it at this moment
                await self._records.write(key, finished.encoded(), found.version)
        for each in await self._all():
            if each.is_unfinished and each.url == record.url:
                await self._records.delete_key(archive_key_path(each.archive_id))
        return finished

    async def opened(self, archive_id: str) -> OpenedArchive:
        """The archive with this id. Raises `ArchiveError` if it is not what the record says, or this program cannot open it;
        `MetastoreError`."""
        known = self._opened.get(archive_id)
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        key, metastore = archive_key_path(archive_id), self._records.metastore
        try:
            found = await self._records.read(f"reading archive {archive_id}", lambda: metastore.get(key))
        except KeyNotFoundError:
            raise ArchiveError(archive_id, f"the metastore has no key {key!r}: put it back") from None
        record = decode_archive(archive_id, found.value)
        try:
            store = self._open_store(record.url)
        except ConfigError as error:  # a plugin that is not installed, or settings of the environment
            raise ArchiveError(record.url, f"this program cannot open it: {error}") from error
        opened = OpenedArchive(record, store, self._calls)
        if record.is_unfinished:
            raise opened.problem("it was not added to its end: add it again")
        await opened.check()
        return self._opened.setdefault(archive_id, opened)

    async def delete_copies(self, ledger_id: int, copies: Iterable[str]) -> None:
        """Deletes the objects of copies that no record names any more, each as a fragment named it. Objects that cannot be
        deleted in time are left to `collect_archives`."""
        with trio.move_on_after(_DELETING_S):
            try:
                for each in copies:
                    archive_id, _, copy = each.partition("/")
                    opened = await self.opened(archive_id)
                    found = await opened.copy(ledger_id, copy)
                    await opened.call(opened.store.delete, [str(name) for name, _ in found])
                return
            except (ArchiveError, MetastoreError) as error:
                _log.info("ledger %d: objects of it stay in an archive until they are collected: %s", ledger_id, error)
                return
        _log.info("ledger %d: objects of it stay in an archive until they are collected", ledger_id)
