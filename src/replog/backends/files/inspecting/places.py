"""Where to look, and reading what is there without leaving a trace, while somebody else may write to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import attrs

from replog.backends.directory import FORMAT_FILE, LOCK_FILE, identity_of
from replog.backends.disk import read_all
from replog.backends.files.catalog import FORMAT as CATALOG_FORMAT
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog, unpack_catalog
from replog.backends.files.directory import (
    JOURNAL,
    JOURNAL_COOKIE,
    LOGS,
    VERSION,
    check_journal_cookie,
    entry_log_name,
    entry_log_number,
    journal_name,
    journal_number,
    read_format,
    read_journal_cookie,
)
from replog.backends.files.record import PAGE_BYTES, FileHeader, unpack_file_header
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.files.window import Window
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress
from replog.backends.inspection.reports import Problem, Vouching, read_vouching
from replog.errors import ConfigError, StorageFailedError
from replog.runtime.disk_errors import exists, is_directory

# -- inspected file ---------------------------------------------------------------------------------------------------
#
# A file read forward in windows without leaving a trace, while somebody else may write to it.


class Unreadable(Exception):
    """The system could not read a file. `offset` is where; `is_gone` if the file is not there any more."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        super().__init__(f"it cannot be read: {error.strerror or error}")
        self.path = path
        self.offset = offset
        self.reason = str(self)
        self.is_gone = isinstance(error, FileNotFoundError)

    @property
    def problem(self) -> Problem:
        """This, as a report. A file that is gone was recycled by a bookie that runs: that is not damage."""
        if self.is_gone:
            return Problem(self.path, 0, "gone", "it was removed or renamed since its name was read")
        return Problem(self.path, self.offset, "unreadable", self.reason)


@contextmanager
def must_be_readable() -> Iterator[None]:
    """For what no report can do without: raises `StorageFailedError` in place of `Unreadable` and OSError."""
    try:
        yield
    except Unreadable as error:
        raise StorageFailedError(f"{error.path}: {error.reason}", "Run this as the user that owns it") from error
    except OSError as error:
        raise StorageFailedError(str(error), "Run this as the user that owns it") from error


class InspectedFile(Window):
    """A file that is open for reading, as a context. Raises `Unreadable`, from its constructor too."""

    def __init__(self, path: str, progress: Progress = ignore_progress) -> None:
        super().__init__()
        self.path = path
        self.name = os.path.basename(path)
        self._progress = progress
        try:
            self.fd = READ_ONLY.open(path)
        except OSError as error:
            raise Unreadable(path, 0, error) from error
        status = os.fstat(self.fd)
        self.size_bytes = status.st_size
        self._inode = (status.st_dev, status.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the descriptor back. Idempotent."""
        if self.fd >= 0:
            READ_ONLY.close(self.fd)
            self.fd = -1

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at this place (`Window.read`)."""
        try:
            data = read_all(READ_ONLY, self.fd, size, offset)
        except OSError as error:
            raise Unreadable(self.path, offset, error) from error
        self._progress(len(data))
        return data

    def file_header(self) -> FileHeader | None:
        """The header page of a journal file or an entry log, as it is now, or None if there is none."""
        return unpack_file_header(self.read(0, PAGE_BYTES))

    def is_in_place(self) -> bool:
        """True while the path leads to this file: it wasn't renamed or removed."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


def read_whole_file(path: str) -> bytes:
    """A file's bytes. Raises `Unreadable`."""
    with InspectedFile(path) as file:
        return file.read(0, file.size_bytes)


def list_names(path: str) -> list[str]:
    """The names in a directory, sorted; [] if there is none. Raises `Unreadable`."""
    try:
        return READ_ONLY.names(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(path, 0, error) from error


# -- places -----------------------------------------------------------------------------------------------------------
#
# Finds out what a path is: a storage, its journal elsewhere, one of its directories, or a single file.


@attrs.frozen
class Place:
    """Where to look. `root` is None for directories and files without a storage around them; `file` is set for a file.

    Without a format file, identity and version are None."""

    path: str
    root: str | None = None
    version: int | None = None
    bookie_id: str | None = None
    journal: str | None = None
    logs: str | None = None
    file: str | None = None

    @property
    def identity(self) -> bytes | None:
        """The 16 bytes that file headers have, if they are known."""
        return None if self.bookie_id is None else identity_of(self.bookie_id)

    def journal_files(self) -> list[tuple[int, str]]:
        """Numbers and paths of the journal files there are now, ascending. Raises `Unreadable`."""
        return _numbered(self.journal, journal_number) if self.journal else []

    def entry_logs(self) -> list[tuple[int, str]]:
        """Numbers and paths of the entry logs there are now, ascending. Raises `Unreadable`."""
        return _numbered(self.logs, entry_log_number) if self.logs else []

    def spares(self) -> list[str]:
        """The paths of spare journal files. Raises `Unreadable`."""
        if not self.journal:
            return []
        return [f"{self.journal}/{name}" for name in list_names(self.journal) if name.startswith(SPARE_PREFIX)]

    def journal_bytes(self) -> int:
        """The size of the journal files, or of the one file, as far as they can be found: for progress."""
        return _total_bytes(self.file, self.journal_files)

    def log_bytes(self) -> int:
        """The size of journal files and entry logs, or of the one file, as far as they can be found: for progress."""
        return _total_bytes(self.file, lambda: [*self.journal_files(), *self.entry_logs()])

    def catalog(self) -> Catalog | Problem | None:
        """The catalog as it is now, a problem if it is damaged, or None if this storage has none."""
        if self.root is None:
            return None
        path = f"{self.root}/{CATALOG}"
        try:
            data = read_whole_file(path)
        except Unreadable as error:
            reason = "the file is missing" if error.is_gone else error.reason
            return Problem(path, 0, "damage" if error.is_gone else "unreadable", reason)
        catalog = unpack_catalog(data)
        if catalog is None:
            return Problem(path, 0, "damage", "it is not a catalog, or its checksum is wrong")
        if catalog.format != CATALOG_FORMAT:
            return Problem(path, 0, "unreadable", f"it has format {catalog.format}: use a newer replog")
        if catalog.identity != self.identity:
            return Problem(path, 0, "damage", f"it is of bookie-{catalog.identity.hex()}, not of {self.bookie_id}")
        return catalog

    def vouching(self) -> Vouching:
        """The durable mark and the doubt as they are now, and what is wrong with them."""
        return Vouching() if self.root is None or self.identity is None else read_vouching(self.root, self.identity)

    def log_path(self, is_journal: bool, number: int) -> str | None:
        """The path of a log file of the catalog, if its directory is known."""
        directory, name = (self.journal, journal_name) if is_journal else (self.logs, entry_log_name)
        return f"{directory}/{name(number)}" if directory else None

    def lock_path(self) -> str | None:
        """Where the lock file is, in a storage."""
        return f"{self.root}/{LOCK_FILE}" if self.root else None


def _total_bytes(file: str | None, files: Callable[[], list[tuple[int, str]]]) -> int:
    total = 0
    with suppress(OSError, Unreadable):  # the inspection itself says what is wrong
        for path in [path for _, path in files()] if file is None else [file]:
            total += os.stat(path).st_size
    return total


def _numbered(directory: str, number_of: Callable[[str], int | None]) -> list[tuple[int, str]]:
    found = [(number_of(name), f"{directory}/{name}") for name in list_names(directory)]
    return sorted((number, path) for number, path in found if number is not None)


def find_place(path: str, journal_dir: str | None = None) -> Place:
    """The kind of this path. Raises `ConfigError` if it can't be inspected, `StorageIdentityError`."""
    path = os.path.normpath(path)
    with must_be_readable():
        if not exists(path):
            raise ConfigError(f"{path} does not exist")
        if not is_directory(path):
            return _around(path, journal_dir)
        names = set(list_names(path))
        if FORMAT_FILE in names:
            return _storage(path, journal_dir)
        if JOURNAL_COOKIE in names:
            return _journal_elsewhere(path)
        if any(journal_number(name) is not None or name.startswith(SPARE_PREFIX) for name in names):
            return attrs.evolve(_parent_storage(path, journal_dir), path=path, journal=path)
        if any(entry_log_number(name) is not None for name in names):
            return attrs.evolve(_parent_storage(path, journal_dir), path=path, logs=path)
    raise ConfigError(f"{path} holds no storage of replog: it has no {FORMAT_FILE}")


def _around(path: str, journal_dir: str | None) -> Place:
    directory = os.path.dirname(path) or "."
    if exists(f"{directory}/{JOURNAL_COOKIE}"):
        return attrs.evolve(_journal_elsewhere(directory), path=path, file=path)
    place = _parent_storage(directory, journal_dir)
    if place.journal is None:
        place = attrs.evolve(place, journal=directory)
    return attrs.evolve(place, path=path, file=path)


def _parent_storage(directory: str, journal_dir: str | None) -> Place:
    """The storage whose journal or logs this directory is, if it is one's."""
    parent = os.path.dirname(os.path.abspath(directory))
    is_part = os.path.basename(os.path.abspath(directory)) in (JOURNAL, LOGS)
    if is_part and exists(f"{parent}/{FORMAT_FILE}"):
        return _storage(parent, journal_dir)
    return Place(directory)


def _storage(root: str, journal_dir: str | None) -> Place:
    found = read_format(READ_ONLY, root, "")
    if found is None:
        raise ConfigError(f"{root} holds no storage of replog: it has no {FORMAT_FILE}")
    journal: str | None = f"{root}/{JOURNAL}"
    if found.is_journal_elsewhere:
        journal = journal_dir
        if journal_dir is not None:
            check_journal_cookie(READ_ONLY, journal_dir, found.bookie_id)
    elif journal_dir is not None:
        raise ConfigError(f"{root} has its journal inside: leave --journal-dir out")
    return Place(root, root, found.version, found.bookie_id, journal, f"{root}/{LOGS}")


def _journal_elsewhere(path: str) -> Place:
    return Place(path, None, VERSION, read_journal_cookie(READ_ONLY, path), os.path.normpath(path))
