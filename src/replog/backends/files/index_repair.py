"""Writes a damaged index again: all that it says can be read from its log file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from replog.backends.disk import Disk
from replog.backends.files.background_pace import no_rest
from replog.backends.files.index import Index, note_dead, remove
from replog.backends.files.indexing import read_directory, write_index
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile, Section
from replog.backends.files.open_parts import Contents
from replog.backends.files.scanning import scan_entry_log, scan_journal
from replog.backends.files.window import damaged

_AT_ONCE = 100  # ledgers that are replaced without giving the lock back


def sections_of(disk: Disk, file: LogFile, identity: bytes) -> list[Section]:
    """The sections of a full file, from its index. If the index is damaged or missing, reads the file itself and writes the
    index again. Raises `StorageDamagedError` if both are damaged; may raise OSError."""
    sections = read_directory(disk, file, identity)
    return scan_sections(disk, file, identity, no_rest) if sections is None else sections


def scan_sections(disk: Disk, file: LogFile, identity: bytes, rest: Callable[[], None]) -> list[Section]:
    """The sections of a full file, by reading it. Writes its index again. `rest` is called after each batch."""
    index = Index()
    reader: LogFile
    if isinstance(file, JournalFile):
        # A reader of its own: the file is in use, and its descriptor and sections must not change before all is read.
        reader = JournalFile(file.number, file.path, -1, identity, 0, 0)
    else:
        reader = EntryLogFile(file.number, file.path, -1)
    reader.position = file.position
    try:
        batches = (
            scan_journal(disk, reader) if isinstance(reader, JournalFile) else scan_entry_log(disk, reader, identity)
        )
        for batch in batches:
            index.put_batch(*batch)
            rest()
    finally:
        if reader.fd >= 0:
            disk.close(reader.fd)
    if reader.position != file.position:
        raise damaged(file, reader.position, f"it ends here, and not at {file.position}")
    sections = list(reader.sections)
    write_index(disk, reader, identity, sections, rest)
    for section in sections:
        section.file = file
    file.switches = reader.switches
    file.is_indexed = True
    return sections


def repair_index(contents: Contents, file: LogFile, rest: Callable[[], None]) -> None:
    """Replaces the index of a file in use. May raise OSError. `rest` as in `replace_sections`.

    Raises `StorageDamagedError` if the log file is damaged, too: then the batches of unreadable pages stay unknown."""
    fresh = scan_sections(contents.disk, file, contents.identity, rest)
    replace_sections(contents, [file], fresh, rest)
    with contents.changed:
        # A read of an old section may have found the new index meanwhile, and called it damaged.
        contents.damages.unreadable_indexes.discard(file)


def replace_sections(
    contents: Contents, old_files: Sequence[LogFile], fresh: Iterable[Section], rest: Callable[[], None]
) -> None:
    """Reads find these sections from now on in place of all those in these files, one ledger after the other. Called without
    the lock, by the thread that holds `working`; the pages of the fresh ones are in memory, and durable.

    `rest` is called each time when the lock was given back: a file may have 100,000 ledgers, and commits wait for the lock."""
    changes: dict[tuple[int, int], tuple[list[Section], list[Section]]] = defaultdict(lambda: ([], []))
    with contents.changed:
        old_sections = [section for file in old_files for section in file.sections]
    for section in old_sections:
        changes[section.ledger_id, section.stamp][0].append(section)
    for section in fresh:
        changes[section.ledger_id, section.stamp][1].append(section)
    pairs = list(changes.items())
    for start in range(0, len(pairs), _AT_ONCE):
        rest()
        with contents.changed:
            for (ledger_id, stamp), (old, new) in pairs[start : start + _AT_ONCE]:
                _replace(contents, ledger_id, stamp, old, new)


def _replace(contents: Contents, ledger_id: int, stamp: int, old: list[Section], new: list[Section]) -> None:
    ledger = contents.index.ledgers.get(ledger_id)
    if ledger is None:
        return  # deleted meanwhile, and with it the old ones
    contents.cache.forget(old)
    for section in old:
        # It is gone if its entries were dropped meanwhile.
        if section in section.file.sections:
            remove(section)
    dropped = ledger.dropped
    if dropped is not None:
        new = [each for each in new if not dropped.covers(stamp, each.first, each.last)]
    ledger.add_stamp(stamp).replace(old, new)
    for section in new:
        section.file.sections.add(section)
        section.file.live_bytes += section.data_bytes
        if dropped is not None:
            note_dead(section, dropped)
        page = section.page
        assert page is not None
        contents.cache.admit(section, page)
