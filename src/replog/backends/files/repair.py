"""Writes a damaged index again: all that it says can be read from its log file."""

from __future__ import annotations

from collections import defaultdict

from replog.backends.disk import Disk
from replog.backends.files.contents import Contents
from replog.backends.files.index import Index, StampSections, note_dead
from replog.backends.files.indexing import read_directory, write_index
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile, Section
from replog.backends.files.scanning import scan_entry_log, scan_journal
from replog.backends.files.window import damaged


def sections_of(disk: Disk, file: LogFile, identity: bytes) -> list[Section]:
    """The sections of a full file, from its index. If the index is damaged or missing, reads the file itself and writes the
    index again. Raises `StorageDamagedError` if both are damaged; may raise OSError."""
    sections = read_directory(disk, file, identity)
    return scan_sections(disk, file, identity) if sections is None else sections


def scan_sections(disk: Disk, file: LogFile, identity: bytes) -> list[Section]:
    """The sections of a full file, by reading it. Writes its index again."""
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
    finally:
        if reader.fd >= 0:
            disk.close(reader.fd)
    if reader.position != file.position:
        raise damaged(file, reader.position, f"it ends here, and not at {file.position}")
    sections = list(reader.sections)
    write_index(disk, reader, identity, sections)
    for section in sections:
        section.file = file
    file.switches = reader.switches
    file.is_indexed = True
    return sections


def repair_index(contents: Contents, file: LogFile) -> None:
    """Replaces the index of a file in use. May raise OSError.

    Raises `StorageDamagedError` if the log file is damaged, too: then the batches of unreadable pages stay unknown."""
    fresh = scan_sections(contents.disk, file, contents.identity)
    with contents.changed:
        contents.damages.unreadable_indexes.discard(file)
        replace_sections(contents, [file], fresh)


def replace_sections(contents: Contents, old_files: list[LogFile], fresh: list[Section]) -> None:
    """Reads find these sections from now on in place of all those in these files. Called with the lock; the pages of the
    fresh ones are in memory, and durable."""
    changes: dict[tuple[int, int], tuple[list[Section], list[Section]]] = defaultdict(lambda: ([], []))
    for file in old_files:
        contents.cache.forget(file.sections)
        for section in file.sections:
            changes[section.ledger_id, section.stamp][0].append(section)
        file.sections.clear()
        file.live_bytes = 0
    for section in fresh:
        changes[section.ledger_id, section.stamp][1].append(section)
    for (ledger_id, stamp), (old, new) in changes.items():
        ledger = contents.index.ledgers.get(ledger_id)
        if ledger is None:
            continue  # deleted meanwhile
        dropped = ledger.dropped
        if dropped is not None:
            new = [each for each in new if not dropped.covers(stamp, each.first, each.last)]
        ledger.stamps.setdefault(stamp, StampSections()).replace(old, new)
        for section in new:
            section.file.sections.add(section)
            section.file.live_bytes += section.data_bytes
            if dropped is not None:
                note_dead(section, dropped)
            page = section.page
            assert page is not None
            contents.cache.admit(section, page)
