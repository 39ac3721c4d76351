"""Opening a storage: checks the owner of the directory, finds the files, and makes everything that was read durable."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import attrs

from replog.backends.directory import identity_of
from replog.backends.disk import Disk, named_errors, read_all, write_all
from replog.backends.durable_mark import DurableMark
from replog.backends.files.catalog import FORMAT as CATALOG_FORMAT
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog, CatalogFile, unpack_catalog
from replog.backends.files.directory import (
    JOURNAL,
    LOGS,
    MAKING_FILE,
    RESERVE_FILE,
    VERSION,
    Format,
    check_journal_cookie,
    entry_log_name,
    journal_name,
    journal_number,
    read_format,
)
from replog.backends.files.index import Index
from replog.backends.files.index_repair import sections_of
from replog.backends.files.journal_files import FilePool
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile
from replog.backends.files.making import make_storage
from replog.backends.files.options import FilesTuning
from replog.backends.files.record import FORMAT, PAGE_BYTES, unpack_file_header
from replog.backends.files.replay import Replay
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.files.window import RECOVER
from replog.errors import ConfigError, StorageDamagedError, StorageFullError, StorageIdentityError
from replog.runtime.platform import UNREADABLE

_PIECE_BYTES = 4 << 20


@attrs.define
class Opened:
    """The contents of a directory: the index, the replayed journal, and the files to use again or to remove."""

    format: Format
    identity: bytes
    journal_directory: str
    catalog: Catalog
    mark: DurableMark
    replay: Replay
    journals: dict[int, JournalFile]
    entry_logs: dict[int, EntryLogFile]
    unread: list[CatalogFile]  # the catalog has them, and they can't be read
    ready: JournalFile | None  # the next file, if it was prepared and not written yet
    dead: list[JournalFile]
    spares: list[str]
    next_number: int  # of a journal file that is surely a new one


@attrs.define
class _Adopted:
    """The files that the catalog has, and the names of unreadable ones with the reasons."""

    journals: dict[int, JournalFile] = attrs.field(factory=dict)
    entry_logs: dict[int, EntryLogFile] = attrs.field(factory=dict)
    unread: list[CatalogFile] = attrs.field(factory=list)
    losses: dict[str, str] = attrs.field(factory=dict)

    @property
    def journal_numbers(self) -> set[int]:
        """The numbers of all journal files, including unread ones."""
        return {*self.journals, *(file.number for file in self.unread if file.is_journal)}


def open_directory(disk: Disk, path: str, options: FilesTuning, lock: Callable[[str], None]) -> Opened:
    """Reads the storage in a directory that is locked, or makes one; locks that of a journal elsewhere before anything
    in it is changed. The doubt names all losses, durably, before anything else is changed (B8). On an error, everything
    is closed again."""
    found = read_format(disk, path, options.expected_bookie_id)
    if found is None:
        found = Format(VERSION, make_storage(disk, path, options), bool(options.journal_dir))
    journal = _journal_directory(disk, path, options, found)
    if found.is_journal_elsewhere:
        lock(journal)
    with named_errors(f"sync {path}"):
        # Before anything is read: what is read here decides what is removed, and a killed process may not have synced it.
        disk.sync_directory(path)
    identity = identity_of(found.bookie_id)
    catalog = _read_catalog(disk, path, identity)
    index = Index()
    files: list[JournalFile] = []
    adopted = _Adopted()
    mark = DurableMark(disk, path, identity)
    try:
        _check_generation(path, catalog, mark)
        # From here on each write of the mark has it, so that an older catalog is recognised at the next start.
        mark.catalog_generation = catalog.generation
        _load(disk, path, journal, identity, catalog, index, adopted)
        dead, files, spares, litter, numbers = _find_journals(disk, journal, found.bookie_id, options, adopted, catalog)
        known = max(mark.position, catalog.durable_sequence)
        replay = _replay(disk, journal, files, options, index, catalog, known, mark.accounted)
        is_doubted = _doubt(disk, path, mark, replay, adopted, known)
        with named_errors(f"settle {journal}"):
            ready = _settle_all(disk, journal, replay)
        # A power loss may have kept an older mark than the journal: the replayed groups are durable now.
        if mark.position < replay.sequence:
            mark.advance(replay.sequence)
        unused = [file for file in replay.unused if file is not ready]
        if is_doubted:
            # Nothing is removed: an operator who finds the cause can still put files back where they were.
            close_files(disk, unused)
        else:
            dead += unused
            with named_errors(f"clear {path}"):
                for name in (*litter, *_unfinished(disk, path, catalog)):
                    disk.unlink(name)
    except BaseException:
        mark.close()
        close_files(disk, [*files, *adopted.journals.values(), *adopted.entry_logs.values()])
        raise
    gone = {file.number for file in replay.unused}
    # Prepared files that were never written are not part of the log; the pool makes the next one again.
    journals = {**adopted.journals, **{file.number: file for file in files if file.number not in gone}}
    return Opened(
        found,
        identity,
        journal,
        catalog,
        mark,
        replay,
        journals,
        adopted.entry_logs,
        adopted.unread,
        ready,
        [] if is_doubted else dead,
        spares,
        # Above every number there is, even of files that can't be read now: they may come back.
        max(numbers, default=catalog.first_journal) + 1,
    )


def _replay(
    disk: Disk,
    journal: str,
    files: list[JournalFile],
    options: FilesTuning,
    index: Index,
    catalog: Catalog,
    known: int,
    accounted: int,
) -> Replay:
    """The journal, replayed from where the catalog says."""
    replay = Replay(
        disk,
        journal,
        files,
        options.open_files_max,
        index,
        first_number=catalog.first_journal,
        sequence=catalog.sequence,
        known=known,
        accounted=accounted,
    )
    replay.run()
    return replay


def _check_generation(path: str, catalog: Catalog, mark: DurableMark) -> None:
    """Refuses a catalog that was put back from a copy: the storage would remove the files that it does not list."""
    if catalog.generation < mark.catalog_generation:
        raise StorageDamagedError(
            f"{path}/{CATALOG} is an earlier one: it has generation {catalog.generation}, and {mark.catalog_generation} "
            "was durable",
            f"Nothing was touched: put the right file there. {RECOVER}",
        )


def current_file(opened: Opened, pool: FilePool) -> JournalFile:
    """The file in which writing goes on. Raises `StorageError`. Bytes behind damage are not overwritten if a new file can
    be made."""
    replay = opened.replay
    # The usual case. Otherwise the bytes behind damage stay as they are: an operator may be able to use them.
    if replay.tail is not None and not replay.goes_on_elsewhere:
        return replay.tail
    try:
        with named_errors(f"make journal file {opened.next_number} in {opened.journal_directory}"):
            file = pool.spares.make(opened.next_number, fill=False)
    except StorageFullError:
        if replay.tail is None or not replay.tail.has_header:
            raise
        # There is no space for a new file. This one may be used: new groups have higher sequences than all that it holds.
        return replay.tail
    file.is_outrun = True
    opened.journals[file.number] = file
    return file


def _doubt(disk: Disk, path: str, mark: DurableMark, replay: Replay, adopted: _Adopted, known: int) -> bool:
    """Raises the doubt if anything was lost that was not accounted for, or if that is unknown. Returns True if it did."""
    losses = [*replay.losses, *(why for name, why in adopted.losses.items() if name not in mark.accounted_names)]
    reasons = [*losses, *mark.cannot_vouch, *replay.unreadable]
    if not reasons:
        return False
    arguments = {"position": max(known, replay.sequence), "accounted": replay.reached}
    try:
        mark.raise_doubt(reasons, is_lost=bool(losses), names=adopted.losses, **arguments)
    except StorageFullError:
        with suppress(FileNotFoundError), named_errors(f"give up {path}/{RESERVE_FILE}"):
            disk.unlink(f"{path}/{RESERVE_FILE}")
        mark.raise_doubt(reasons, is_lost=bool(losses), names=adopted.losses, **arguments)
    return True


def _settle_all(disk: Disk, journal: str, replay: Replay) -> JournalFile | None:
    """Makes everything that was read durable; returns the next file if it was prepared."""
    tail = replay.tail
    ready = None
    if tail is not None:
        if tail.fd < 0:
            tail.fd = disk.open(tail.path)
        _settle(disk, tail, replay.last_group_start)
        for file in replay.unused[:1]:
            if file.number == tail.number + 1 and file.has_header and not replay.goes_on_elsewhere:
                ready = file
                if file.fd < 0:
                    file.fd = disk.open(file.path)
    disk.make_directory(journal)
    disk.sync_directory(journal)
    return ready


def close_files(disk: Disk, files: list[LogFile] | list[JournalFile]) -> None:
    """Closes the open ones."""
    for file in files:
        if file.fd >= 0:
            disk.close(file.fd)
            file.fd = -1


def _journal_directory(disk: Disk, path: str, options: FilesTuning, found: Format) -> str:
    if found.is_journal_elsewhere != bool(options.journal_dir):
        where = "in another directory: name it with" if found.is_journal_elsewhere else "in it: open it without"
        raise ConfigError(f"the journal of the storage in {path} is {where} journal_dir")
    if not found.is_journal_elsewhere:
        return f"{path}/{JOURNAL}"
    check_journal_cookie(disk, options.journal_dir, found.bookie_id)
    with named_errors(f"read {path}"):
        if MAKING_FILE in disk.names(path):
            disk.unlink(f"{path}/{MAKING_FILE}")
    return options.journal_dir


def _read_catalog(disk: Disk, path: str, identity: bytes) -> Catalog:
    with named_errors(f"read {path}/{CATALOG}"):
        try:
            fd = disk.open(f"{path}/{CATALOG}")
        except FileNotFoundError as error:
            raise StorageDamagedError(f"{path}/{CATALOG} is missing", RECOVER) from error
        try:
            catalog = unpack_catalog(read_all(disk, fd, disk.size(fd), 0))
        finally:
            disk.close(fd)
    if catalog is None:
        raise StorageDamagedError(f"{path}/{CATALOG} is damaged: it doesn't match its checksum", RECOVER)
    if catalog.format != CATALOG_FORMAT or catalog.identity != identity:
        raise StorageIdentityError(
            f"{path}/{CATALOG} is a catalog of format {catalog.format} of bookie-{catalog.identity.hex()}, expected format "
            f"{CATALOG_FORMAT} of bookie-{identity.hex()}",
            "Nothing was touched: put the right file there",
        )
    assert catalog.sequence <= catalog.durable_sequence, "as the checkpoint asserted that wrote it"
    return catalog


def _unfinished(disk: Disk, path: str, catalog: Catalog) -> list[str]:
    """Entry logs, and parts of them, that the catalog has not, and a catalog that was not finished."""
    logs = f"{path}/{LOGS}"
    kept = {entry_log_name(file.number) for file in catalog.files if not file.is_journal}
    kept |= {name.removesuffix(".log") + ".index" for name in kept}
    # A tool that copied the storage may have left out the empty directory.
    disk.make_directory(logs)
    half = [f"{path}/{name}" for name in disk.names(path) if name == f"{CATALOG}.tmp"]
    return half + [f"{logs}/{name}" for name in disk.names(logs) if name not in kept]


def _load(
    disk: Disk, path: str, journal: str, identity: bytes, catalog: Catalog, index: Index, adopted: _Adopted
) -> None:
    """The files that the catalog has, and into the index what the catalog and the files' own indexes say."""
    index.put_catalog(catalog.deleted, catalog.ledgers, catalog.dropped)
    for each in catalog.files:
        file: LogFile
        if each.is_journal:
            name = journal_name(each.number)
            file = JournalFile(each.number, f"{journal}/{name}", -1, identity, 0, 0)
        else:
            name = entry_log_name(each.number)
            file = EntryLogFile(each.number, f"{path}/{LOGS}/{name}", -1)
        file.age = each.age
        file.position = each.end_bytes
        # One unreadable file must not keep the others from being served: its ledgers are doubted instead (B8).
        try:
            with named_errors(f"read the index of {file.path}"):
                size = _size_of(disk, file)
                sections = sections_of(disk, file, identity)
        except StorageDamagedError as error:
            adopted.unread.append(each)
            adopted.losses[name] = str(error).removesuffix(f". {error.hint}")
            continue
        for section in sections:
            index.put_section(section)
        if isinstance(file, JournalFile):
            file.allocated = size & -PAGE_BYTES
            adopted.journals[each.number] = file
        else:
            assert isinstance(file, EntryLogFile)
            adopted.entry_logs[each.number] = file


def _size_of(disk: Disk, file: LogFile) -> int:
    try:
        fd = disk.open(file.path)
    except FileNotFoundError as error:
        raise StorageDamagedError(f"{file.path} is missing, though the catalog has it", RECOVER) from error
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def _find_journals(
    disk: Disk,
    directory: str,
    bookie_id: str,
    options: FilesTuning,
    adopted: _Adopted,
    catalog: Catalog,
) -> tuple[list[JournalFile], list[JournalFile], list[str], list[str], list[int]]:
    """Of the journal files that are not adopted those that nobody needs, and those to replay, ascending; the names of the
    spare ones; the paths of what a crash left half made, of indexes that no catalog has, of spare files beyond need; and
    the numbers of all journal files."""
    of_catalog = adopted.journal_numbers
    numbers = list(of_catalog)
    dead: list[JournalFile] = []
    files: list[JournalFile] = []
    spares: list[str] = []
    litter: list[str] = []
    with named_errors(f"read {directory}"):
        try:
            names = disk.names(directory)
        except FileNotFoundError:
            return [], [], [], [], numbers
        for name in names:
            path = f"{directory}/{name}"
            number = journal_number(name)
            if number is not None:
                numbers.append(number)
                if number in of_catalog:
                    continue
                # Older files are indexed, and the catalog has those that are still needed.
                if number >= catalog.first_journal:
                    files.append(_read_file_header(disk, number, path, bookie_id))
                else:
                    dead.append(JournalFile(number, path, -1, identity_of(bookie_id), 0, options.capacity_bytes))
            elif name.startswith(SPARE_PREFIX) and len(spares) < options.spare_files and _fits(disk, path, options):
                spares.append(name)
            elif (
                name.startswith(SPARE_PREFIX)
                or name.endswith(".tmp")
                or (
                    name.endswith(".index")
                    and journal_number(name.removesuffix(".index") + ".journal") not in of_catalog
                )
            ):
                litter.append(path)
    files.sort(key=lambda file: file.number)
    return dead, files, spares, litter, numbers


def _fits(disk: Disk, path: str, options: FilesTuning) -> bool:
    fd = disk.open(path)
    try:
        return PAGE_BYTES <= disk.size(fd) <= options.capacity_bytes
    finally:
        disk.close(fd)


def _read_file_header(disk: Disk, number: int, path: str, bookie_id: str) -> JournalFile:
    """A journal file to replay. Without an intact header of its own only the sequences tell what it holds."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        try:
            header = unpack_file_header(read_all(disk, fd, PAGE_BYTES, 0))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            header = None
    finally:
        disk.close(fd)
    identity = identity_of(bookie_id)
    if header is not None and (header.format != FORMAT or header.identity != identity):
        raise StorageIdentityError(
            f"{path} is a journal of format {header.format} of bookie-{header.identity.hex()}, "
            f"expected format {FORMAT} of {bookie_id}",
            "Nothing was touched: put the right file there",
        )
    has_header = header is not None and header.number == number
    epoch = header.epoch if header is not None and has_header else -1
    return JournalFile(number, path, -1, identity, epoch, size & -PAGE_BYTES, has_header=has_header)


def _settle(disk: Disk, tail: JournalFile, start: int) -> None:
    """Makes everything that was read durable.

    A process that was killed, or whose sync failed, may have left the last group in the page cache only, where it looks as
    if it were on the disk. So the group is written again, and synced."""
    start = start if tail.last_sequence else tail.position
    while start < tail.position:
        piece = read_all(disk, tail.fd, min(_PIECE_BYTES, tail.position - start), start)
        if not piece:
            raise StorageDamagedError(f"{tail.path} is damaged at {start}: it ended while it was read", RECOVER)
        write_all(disk, tail.fd, (piece,), start)
        start += len(piece)
    disk.fdatasync(tail.fd)
