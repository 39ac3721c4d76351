"""What must be true of the index chunks in a metastore at each moment, looked at whenever a key changes (M4).

- A record that is written names only chunks that exist, and that hold what it says.
- No fragment is lost, or named twice: all but the last one stay as they are, until they are trimmed.
- A chunk that a record names is never deleted.
- A name means one value at all times, whoever writes it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.metastores.memory import MemoryMetastore
from replog.protocol.chunks import Chunk, ChunkContents
from replog.protocol.model import LedgerMetadata
from replog.records.chunks import decode_chunk
from replog.records.ledgers import decode_ledger
from replog.records.paths import CHUNKS_KEY, chunk_key_path, ledger_key_path

_LEDGERS = "ledgers/"


@attrs.frozen
class Whole:
    """A record with all its fragments, and the names of all its chunks."""

    metadata: LedgerMetadata
    names: frozenset[str]


class NamedChunks:
    """Looks at each change of a metastore from now on. `violated` is told what is wrong."""

    def __init__(self, metastore: MemoryMetastore, violated: Callable[[str], None]) -> None:
        self.created = 0  # chunks
        self._store = metastore._store
        self._violated = violated
        self._ledgers: dict[int, Whole] = {}
        self._values: dict[str, bytes] = {}  # of all chunks that there ever were
        self._create, self._put, self._delete = self._store.create, self._store.put, self._store.delete
        vars(self._store).update(create=self._created, put=self._changed, delete=self._deleted)

    def unnamed(self) -> list[str]:
        """The keys of chunks that no record names now."""
        named = {chunk_key_path(each, name) for each, whole in self._ledgers.items() for name in whole.names}
        return sorted(key for key in self._values if self._store.version(key) is not None and key not in named)

    def whole(self, ledger_id: int) -> LedgerMetadata:
        """The record of a ledger as it is now, with all its fragments."""
        return self._ledgers[ledger_id].metadata

    def _created(self, key: str, value: bytes, *, is_announced: bool = False) -> int:
        version = self._create(key, value, is_announced=is_announced)
        if key.startswith(f"{CHUNKS_KEY}/"):
            self.created += 1
            if self._values.setdefault(key, value) != value:
                self._violated(f"{key} is written with other contents than before")
        elif key.startswith(_LEDGERS):
            self._look(key, value)
        return version

    def _changed(self, key: str, value: bytes, expected: int) -> int:
        version = self._put(key, value, expected)
        if key.startswith(_LEDGERS):
            self._look(key, value)
        elif key.startswith(f"{CHUNKS_KEY}/"):
            self._violated(f"{key} is changed")
        return version

    def _deleted(self, key: str, expected: int | None) -> None:
        self._delete(key, expected)
        if key.startswith(_LEDGERS):
            self._ledgers = {each: whole for each, whole in self._ledgers.items() if self._exists(each)}
        for ledger_id, whole in self._ledgers.items():
            if key.startswith(f"{CHUNKS_KEY}/{ledger_id}/") and key.rpartition("/")[2] in whole.names:
                self._violated(f"{key} is deleted, and the record names it")

    def _exists(self, ledger_id: int) -> bool:
        return self._store.version(ledger_key_path(ledger_id)) is not None

    def _look(self, key: str, value: bytes) -> None:
        metadata = decode_ledger(key, value)
        names: set[str] = set()
        while metadata.chunks:
            found = {each: self._contents(metadata.ledger_id, each) for each in metadata.chunks}
            names.update(chunk.name for chunk in found)
            known = {chunk: contents for chunk, contents in found.items() if contents is not None}
            if len(known) < len(found):
                self._violated(f"the record names chunks that do not exist: {set(found) - set(known)}")
                return
            metadata = metadata.loaded(known)
        before = self._ledgers.get(metadata.ledger_id)
        if before is not None:
            self._compare(before.metadata, metadata)
        self._ledgers[metadata.ledger_id] = Whole(metadata, frozenset(names))

    def _contents(self, ledger_id: int, chunk: Chunk) -> ChunkContents | None:
        key = chunk_key_path(ledger_id, chunk.name)
        if self._store.version(key) is None:
            return None
        return decode_chunk(key, self._store.get(key).value, chunk)

    def _compare(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        fixed = [
            (each.first_entry_id, each.term) for each in before.fragments[:-1] if each.first_entry_id >= after.trim_to
        ]
        found = [(each.first_entry_id, each.term) for each in after.fragments]
        if fixed != found[: len(fixed)] or found[0][0] != after.trim_to:
            self._violated(f"fragments from {after.trim_to} on were {fixed}, and are {found}")
