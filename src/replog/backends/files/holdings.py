"""The entries of a ledger that a storage of files holds, from its index alone (F3)."""

from __future__ import annotations

from collections.abc import Sequence

from replog.abc import StoredRange
from replog.backends.files.index import SectionGone
from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import Section
from replog.backends.files.open_parts import Contents
from replog.backends.holdings import Holdings
from replog.errors import StorageUncertainError

_Columns = tuple[Sequence[int], Sequence[int], Sequence[int]]


def stored_ranges(contents: Contents, ledger_id: int) -> list[StoredRange]:
    """The stored ranges of a ledger (`Storage.ranges`). One page of the index at a time is in memory beside those that
    are in memory anyway."""
    while True:
        with contents.lock:
            ledger = contents.index.ledgers.get(ledger_id)
            sections = [each for stamps in ledger.stamps for each in stamps.sections] if ledger else []
            dropped = ledger.dropped.copy() if ledger and ledger.dropped is not None else None
        holdings = Holdings()
        try:
            for section in sections:
                for first, last, stride in zip(*_columns(contents, section), strict=True):
                    if dropped is not None and dropped.covers(section.stamp, first, last, stride):
                        continue
                    holdings.add(section.stamp, first, last, stride)
        except SectionGone:
            # Compaction has moved its batches to a section that is not in the list.
            continue
        with contents.lock:
            damage = [each for each in contents.damages.known.values() if each.ledger_id == ledger_id]
        return holdings.ranges(damage)


def _columns(contents: Contents, section: Section) -> _Columns:
    """First ids, last ids and strides of a section's batches; nothing if its page cannot be read."""
    with contents.lock:
        page = section.page
        if page is not None:
            # A copy: the page of the current journal file grows.
            return page.firsts[:], page.lasts[:], page.strides[:]
    try:
        page = contents.load_page(section)
    except StorageUncertainError:
        page = IndexPage()
    return page.firsts, page.lasts, page.strides
