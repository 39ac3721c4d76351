"""The bookies of one process: their directories, and how one is left out whose disk is damaged, missing or new (C7).

A storage that can't be opened is left out if the others suffice to write and recover. That is never silent: observers get
an event, it is logged as an error, and the client's `statistics()` count it. A directory of another cluster (B4), a
directory that another process has open, and bookies without their metadata are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs

from replog.abc import Metastore, Storage
from replog.bookie.serving import close_storage, open_storage, storage_url
from replog.config import BackendURL, BookieOptions
from replog.errors import ConfigError, StorageError, StorageFailedError, StorageIdentityError, StorageInUseError
from replog.hookspecs import BookieLeftOut, BookieStartsEmpty
from replog.protocol.quorum import ENSEMBLE_MAX, Quorum
from replog.records.bookies import BOOKIES_KEY, COOKIES_KEY, READ_ONLY_BOOKIES_KEY
from replog.registry import Registry
from replog.runtime.disk_errors import described, names_like, trouble_of
from replog.runtime.loggers import logger
from replog.runtime.threads import run_in_thread

_log = logger("replog.bookie")

_BOOKIE_DIRECTORY = "bookie-"


class EmbeddedStorages:
    """The storages that one process embeds."""

    def __init__(
        self, directories: Sequence[Path], quorum: Quorum, registry: Registry, *, has_peers: bool = False
    ) -> None:
        self.left_out: dict[str, StorageError] = {}  # by directory
        self._directories = directories
        self._quorum = quorum
        self._has_peers = has_peers  # bookies in other processes, which may suffice
        self._registry = registry
        self._stored: dict[str, Storage] = {}  # by directory

    async def open(self, storage: str, stack: AsyncExitStack) -> list[Storage]:
        """Opens the storages that can be opened; the stack closes them. Raises `StorageError` if these don't suffice, and for
        problems that must not be passed over."""
        for directory in self._directories:
            try:
                opened = await open_storage(self._registry, storage_url(storage, directory))
            # Another's directory, or one in use, is a mistake of configuration: to go on without it would hide that.
            except (StorageIdentityError, StorageInUseError):
                raise
            except StorageError as error:
                self.left_out[str(directory)] = error
            else:
                stack.push_async_callback(close_storage, opened)
                self._stored[str(directory)] = opened
        if not self._do_others_suffice():
            raise next(iter(self.left_out.values()))
        for name, problem in self.left_out.items():
            _log.error("the bookie in %s is left out, the others go on: %s", name, problem)
            self._registry.observe(BookieLeftOut(name, problem))
        return list(self._stored.values())

    def _do_others_suffice(self) -> bool:
        lacking = max(0, self._quorum.ensemble - len(self._stored))
        if not self.left_out or not lacking or self._has_peers:
            return True
        return lacking < self._quorum.ensemble and self._quorum.may_lack(
            sum(1 << index for index in self._quorum.spread(lacking))
        )

    async def check_known(self, metastore: Metastore, metadata: Path | None) -> None:
        """Compares the storages with the bookies that the metastore knows, before anything is written to it. `metadata` is its
        directory, if it is beside the first bookie.

        Raises `StorageIdentityError` if there are ledgers, and the metastore never heard of their bookie; `MetastoreError`."""
        # Read before anything is written: a refusal leaves the metastore and all directories as they were.
        known = set(await metastore.children(COOKIES_KEY))
        strangers = {name: each for name, each in self._stored.items() if each.bookie_id not in known}
        for name, storage in strangers.items():
            has_ledgers = metadata is not None and len(await run_in_thread(storage.ledger_ids)) > 0
            if has_ledgers:
                raise StorageIdentityError(
                    f"the bookie in {name} has ledgers, but the metastore in {metadata} has never heard of it",
                    "Metadata stands beside the bookie of the first directory: name the directories in the order of before, "
                    f"mount that disk, or restore {metadata} from a backup. Nothing was touched",
                )
        here = {each.bookie_id for each in self._stored.values()}
        absent = known - here
        if strangers and absent:
            absent -= set(await metastore.announced(BOOKIES_KEY)) | set(
                await metastore.announced(READ_ONLY_BOOKIES_KEY)
            )
        for name, storage in strangers.items():
            if absent:
                missing = tuple(sorted(absent))
                _log.error(
                    "a new bookie starts in %s, which was empty; known and not here: %s", name, ", ".join(missing)
                )
                self._registry.observe(BookieStartsEmpty(storage.bookie_id, name, missing))


def _check_path(path: str | os.PathLike[str]) -> None:
    # An empty one would be the working directory: as of a variable that is not set.
    if isinstance(path, str) and (not path or "\0" in path):
        raise ConfigError(f"embed: directory={path!r} must be a path, as './wal'")


def bookie_directories(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], bookies: int | None
) -> list[Path]:
    """Where the embedded bookies have their storages. Raises `ConfigError`, `StorageFailedError`."""
    if not isinstance(directory, str | os.PathLike):
        if not isinstance(directory, Sequence) or not all(isinstance(each, str | os.PathLike) for each in directory):
            raise ConfigError(f"embed: directory={directory!r} must be a path, or a list of paths")
        for each in directory:
            _check_path(each)
        directories = [Path(each) / f"{_BOOKIE_DIRECTORY}0" for each in directory]
        if not directories or len(set(directories)) < len(directories):
            raise ConfigError(f"embed: {list(map(str, directory))} must be one or more directories, each once")
        if bookies not in (None, len(directories)):
            raise ConfigError(
                f"embed: {bookies} bookies in {len(directories)} directories: give one for each, or only one"
            )
        return directories
    _check_path(directory)
    parent = Path(directory)
    # A directory that has more bookies than are asked for would lose the ledgers that the others hold.
    count = 1 if bookies is None else bookies
    if type(count) is not int or not 1 <= count <= ENSEMBLE_MAX:
        raise ConfigError(f"embed: bookies={count!r} must be a whole number from 1 to {ENSEMBLE_MAX}")
    try:
        existing = len(names_like(parent, f"{_BOOKIE_DIRECTORY}[0-9]*"))
    except OSError as error:
        raise StorageFailedError(
            f"embed: how many bookies {parent} has is unknown: {described(error)}; nothing was touched",
            f"Then try again: {trouble_of(error).value}",
        ) from error
    if bookies is None:
        count = max(1, existing)
    elif existing > count:
        raise ConfigError(
            f"embed: {parent} has {existing} bookies, and {count} were asked for: their ledgers need them all"
        )
    return [parent / f"{_BOOKIE_DIRECTORY}{number}" for number in range(count)]


def embedded_options(storage: str | None, options: BookieOptions | None) -> BookieOptions:
    """The options of each embedded bookie. Raises `ConfigError`."""
    if storage is not None and options is not None and options.storage == BookieOptions().storage:
        options, storage = attrs.evolve(options, storage=storage), None  # it was not named there
    if storage is not None and options is not None:
        problem = f"embed: the storage is named twice: storage={storage!r}, and {options.storage!r} in bookie_options"
        raise ConfigError(f"{problem}: give one of them")
    chosen = options or BookieOptions(storage="files" if storage is None else storage)
    if BackendURL.parse(chosen.storage).rest:
        raise ConfigError(f"embed: storage={chosen.storage!r} names a place, but each bookie has its own: leave it out")
    return chosen


def embedded_quorum(bookies: int) -> Quorum:
    """The quorum of a client that embeds so many bookies, if it names none."""
    return Quorum() if bookies >= Quorum().ensemble else Quorum(bookies, bookies, bookies)
