"""Rewriting log files in the order of their ledgers: compaction, and the flush of a journal that is elsewhere (B6).

The order is the safety: copy what is still needed, each batch checked; sync the copy and its index; only then let reads
find the copies; then a catalog that has the new file and not the old ones; only then remove those. A crash at any point
leaves either the old files or the new ones in a catalog, and the start removes what no catalog has.

Theory: rewriting a file costs its needed bytes and gains the others, so a threshold of their share decides, a low one
often and a high one rarely. A major compaction also rewrites journal files whose ledgers alternate, although that gains no
space: afterwards, reading one ledger is reading one piece. Two files must not be rewritten again and again: an entry log
counts without its header, which every copy has again, and a file in order is not scattered just because a fifth of its
ledgers was deleted. `pacing` bounds the cost for commits.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from replog.backends.files.background_pace import Closing, Pace
from replog.backends.files.directory import LOGS
from replog.backends.files.entry_log import EntryLogWriter
from replog.backends.files.fetching import DamagedBatch, read_checked
from replog.backends.files.index import SectionGone
from replog.backends.files.index_page import IndexPage
from replog.backends.files.index_repair import replace_sections
from replog.backends.files.log_file import EntryLogFile, Location, LogFile, Section
from replog.backends.files.open_parts import Contents

_SCATTERED_BYTES = 1 << 20  # a journal file whose ledgers alternate more often than this is worth putting in order
# Of switches per ledger: more than what the deletion of a fifth of its ledgers makes of a file in order
_ALTERNATING = 1.25

Batch = tuple[int, int, int, Location]  # first id, last id, stride, place
Row = tuple[int, int, int, int, int, Section]  # first id, last id, stride, age turned round, position in the page


def worth_compacting(contents: Contents, *, is_major: bool) -> list[list[LogFile]]:
    """The files to rewrite, in groups that make one entry log each, the oldest first. Called without the lock."""
    options = contents.options
    threshold = options.major_compaction_threshold if is_major else options.minor_compaction_threshold
    groups: list[list[LogFile]] = []
    group_bytes = 0
    if threshold <= 0:
        return []
    # Not yet indexed: the journal still needs it. Without sections: it can go as it is, without a copy.
    with contents.changed:
        files = [file for file in contents.files() if file.is_indexed and not file.is_damaged and file.sections]
        # Lists, so that commits need not wait while all of them are looked at.
        sections = {file: list(file.sections) for file in files if is_major and file.is_journal}
    stamps_of = {file: {_ledger_and_stamp(section) for section in of_file} for file, of_file in sections.items()}
    journals_of = Counter(stamp for stamps in stamps_of.values() for stamp in stamps)
    for file in sorted(files, key=lambda file: file.age):
        # An entry log is its batches and a header that no copy saves: a short one would be rewritten again and again.
        size_bytes = file.position if file.is_journal else file.batch_bytes
        if file.live_bytes >= threshold * size_bytes and not _is_scattered(file, stamps_of.get(file), journals_of):
            continue
        is_full = group_bytes + file.live_bytes > options.entry_log_bytes
        # All files of a group are open while it is rewritten.
        if not groups or is_full or len(groups[-1]) >= options.open_files_max:
            groups.append([])
            group_bytes = 0
        groups[-1].append(file)
        group_bytes += file.live_bytes
    return groups


def _is_scattered(
    file: LogFile, stamps: set[tuple[int, int]] | None, journals_of: Mapping[tuple[int, int], int]
) -> bool:
    """True if reading one ledger of the file would jump a lot: inside the file, or from one journal file to the next."""
    if stamps is None or file.position >= file.switches * _SCATTERED_BYTES:
        return False
    if file.switches > _ALTERNATING * len(stamps):
        return True
    # Its first and last ledger may continue in others, in order as they are.
    continued = sum(journals_of[stamp] > 1 for stamp in stamps)
    return continued > max(2, len(stamps) // 2)


class Rewriter:
    """Copies the needed batches of some files into new entry logs. `next_number` counts these over the storage's life.

    Calls `between` from time to time, so that other work needn't wait for the end; it may rewrite other files."""

    def __init__(self, contents: Contents, next_number: int, between: Callable[[], None]) -> None:
        self._contents = contents
        self._between = between
        self.next_number = next_number
        self.copied_bytes = 0
        self.copied_batches = 0

    def rewrite(self, files: Sequence[LogFile], pace: Pace) -> None:
        """Copies all that is needed of these files, so that they can go. Called without the lock, by one thread at a time.

        Raises `DamagedBatch` or `StorageUncertainError` if a batch can't be copied, `Closing`; may raise OSError. Then
        nothing has changed."""
        contents = self._contents
        with contents.changed:
            if contents.closing.is_set():
                raise Closing
            # A file may have been retired since it was chosen: its ledgers were deleted.
            files = [file for file in files if not file.is_retired]
            sections = [section for file in files for section in file.sections]
            # Pinned until the end: a recycled file would be copied with another life's bytes.
            contents.descriptors.pin(files, wait=True)
        written: list[EntryLogWriter] = []
        try:
            self._copy(
                sections,
                # The copy is as old as the newest of its sources: of two copies of a
                # batch that of the higher age counts.
                max((file.age for file in files), default=0),
                pace,
                written,
            )
            for writer in written:
                writer.finish(pace.rest)
        except BaseException:
            for writer in written:
                writer.abandon()
            raise
        finally:
            with contents.changed:
                contents.descriptors.unpin(files)
        # Only now that the copies are durable may reads find them. The old files stay in the catalog until the next one.
        with contents.changed:
            for writer in written:
                self._adopt(writer.file)
        replace_sections(contents, files, [section for writer in written for section in writer.sections], pace.rest)

    def _adopt(self, file: EntryLogFile) -> None:
        file.is_indexed = True
        self._contents.entry_logs[file.number] = file
        self._contents.descriptors.add(file)
        self._contents.page_cache.add(file)

    def _copy(self, sections: list[Section], age: int, pace: Pace, written: list[EntryLogWriter]) -> None:
        contents = self._contents
        entry_log_bytes = contents.options.entry_log_bytes
        sections.sort(key=_ledger_and_stamp)
        for (ledger_id, stamp), group in groupby(sections, _ledger_and_stamp):
            with contents.changed:
                ledger = contents.index.ledgers.get(ledger_id)
                # A copy: entries that are dropped meanwhile are copied, and dropped in the copy.
                dropped = ledger.dropped.copy() if ledger is not None and ledger.dropped is not None else None
            if ledger is None:
                continue  # deleted meanwhile
            has_begun = False
            for first, last, stride, location in self._batches(group):
                if dropped is not None and dropped.covers(stamp, first, last, stride):
                    continue
                try:
                    data = read_checked(contents.disk, location)
                except DamagedBatch as error:
                    contents.damages.note(error, ledger_id, stamp, (first, last))
                    raise
                if not written or written[-1].size_bytes + len(data) > entry_log_bytes:
                    self._begin(written, age)
                    has_begun = False
                # Only with its first batch: if all of them were dropped, the section would be empty, and have no page.
                if not has_begun:
                    written[-1].begin_section(ledger_id, stamp)
                    has_begun = True
                written[-1].add(first, last, stride, data, location.checksum)
                self.copied_batches += 1
                self.copied_bytes += len(data)
                if pace.spend(len(data)):
                    self._between()

    def _begin(self, written: list[EntryLogWriter], age: int) -> None:
        contents = self._contents
        writer = EntryLogWriter(contents.disk, f"{contents.path}/{LOGS}", self.next_number, contents.identity)
        writer.file.age = age
        self.next_number += 1
        written.append(writer)

    def _batches(self, sections: Iterable[Section]) -> Iterator[Batch]:
        """The batches of one ledger and stamp in the order of their first ids; of two copies that in the newer file."""
        try:
            pages = self._contents.pages_of(sections)
        except SectionGone:
            # Its ledger was deleted; `working` is held, so no other thread rewrites files.
            return
        rows = [_rows(section, page) for section, page in pages.items()]
        previous = None
        for first, last, stride, _, at, section in heapq.merge(*rows, key=_order) if len(rows) > 1 else rows[0]:
            # Rows of one batch follow one another, that of the newest file first: the others are older copies.
            if (first, last, stride) != previous:
                previous = first, last, stride
                yield first, last, stride, section.location(pages[section], at)


def _rows(section: Section, page: IndexPage) -> Iterator[Row]:
    for at in range(len(page)):
        yield (*page.identity(at), -section.file.age, at, section)


def _ledger_and_stamp(section: Section) -> tuple[int, int]:
    return section.ledger_id, section.stamp


def _order(row: Row) -> tuple[int, int, int, int]:
    return row[:4]
