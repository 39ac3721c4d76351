"""Index chunks in the simulated metastore: written with the record that names them, kept as long as it does (M4).

The calls of one change are one here: chunks never change, so nobody can tell. The simulation of client, log and bookie takes them
apart. With the scenarios `chunks` and `chunks-log` a record keeps two fragments, and a chunk three items, so that few rolls make
several levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replog.protocol import chunks as index
from replog.protocol.chunks import Chunk, ChunkContents, is_packed, new_chunks
from replog.protocol.model import LedgerMetadata
from tests.simulator.facts import Facts

HEAD_FRAGMENTS, CHUNK_ITEMS = 2, 3  # instead of 32 and 32


@contextmanager
def small_chunks() -> Iterator[None]:
    """Records of few fragments, as long as the context lasts."""
    usual = index.HEAD_FRAGMENTS, index.CHUNK_ITEMS
    index.HEAD_FRAGMENTS, index.CHUNK_ITEMS = HEAD_FRAGMENTS, CHUNK_ITEMS
    try:
        yield
    finally:
        index.HEAD_FRAGMENTS, index.CHUNK_ITEMS = usual


class Chunks:
    """The chunks of all ledgers, and whether they are what the records say."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._kept: dict[tuple[int, str], ChunkContents] = {}
        self._ever: dict[tuple[int, str], ChunkContents] = {}

    def written(self, record: LedgerMetadata) -> LedgerMetadata:
        """A client writes this record, with its new chunks. Chunks that it no longer names are gone. Returns what is
        stored."""
        ledger_id = record.ledger_id
        if not is_packed(record.chunks, record.fragments):
            self._facts.fail("M4", f"ledger {ledger_id} is written with {len(record.fragments)} fragments")
        for chunk in new_chunks(record.chunks):
            assert chunk.contents is not None, "a new chunk has contents"
            if self._ever.setdefault((ledger_id, chunk.name), chunk.contents) != chunk.contents:
                self._facts.fail("M4", f"chunk {chunk.name} of ledger {ledger_id} is written with other contents")
            self._kept[ledger_id, chunk.name] = chunk.contents
        head = record.settled()
        named = {chunk.name for chunk in self._loaded(head, lambda _chunk: True, self._kept).unnamed}
        for chunk in record.unnamed:
            if chunk.name in named:
                self._facts.fail("M4", f"chunk {chunk.name} of ledger {ledger_id} is named, and about to be deleted")
            self._kept.pop((ledger_id, chunk.name), None)
        if head.chunks:
            self._facts.world.count("record written with chunks")
            self._facts.world.count(f"chunk of level {max(chunk.level for chunk in head.chunks)}")
        return head

    def loaded(self, head: LedgerMetadata, at: int | None) -> LedgerMetadata:
        """The record with the fragment of this entry, as a client reads it."""
        return self._loaded(head, lambda chunk: at is not None and chunk.holds(at), self._kept)

    def whole(self, head: LedgerMetadata) -> LedgerMetadata:
        """A record of any time with all its fragments, for the oracle."""
        return self._loaded(head, lambda _chunk: True, self._ever)

    def _loaded(
        self, head: LedgerMetadata, wanted: Callable[[Chunk], bool], known: dict[tuple[int, str], ChunkContents]
    ) -> LedgerMetadata:
        while missing := [chunk for chunk in head.chunks if wanted(chunk)]:
            found = {}
            for chunk in missing:
                contents = chunk.contents or known.get((head.ledger_id, chunk.name))
                if contents is None:
                    self._facts.fail("M4", f"ledger {head.ledger_id} names chunk {chunk.name}, which does not exist")
                assert contents is not None, "overlooking M4 is of no use"
                if faults := contents.faults(chunk):
                    self._facts.fail("M4", f"chunk {chunk.name} of ledger {head.ledger_id}: {faults}")
                found[chunk] = contents
            head = head.loaded(found)
        return head
