"""Mutants of index chunks (M4): how they are packed, loaded, written, deleted, and who must look into them."""

from tests.mutation.table import SourceMutant

_FIRST = ("tests/client/test_chunks.py", "tests/records/test_chunks.py", "tests/protocol/test_reading_chunks.py")
_THEN = ("tests/client", "tests/log/test_unbounded_logs.py")


def _mutant(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, "M4", file, old, new, why, (*_FIRST, *_THEN))


MUTANTS = (
    # -- writing and deleting (client/ledger_records.py) --------------------------------------------------------------
    _mutant(
        "chunk-deleted-before-record",
        "client/ledger_records.py",
        "        key, value = ledger_key_path(metadata.ledger_id), encode(metadata)\n        try:\n",
        (
            "        key, value = ledger_key_path(metadata.ledger_id), encode(metadata)\n"
            "        await self._delete_chunks(metadata, metadata.unnamed)\n"
            "        try:\n"
        ),
        "a change that loses its compare-and-set has deleted chunks that the record still names",
    ),
    _mutant(
        "chunk-written-after-record",
        "client/ledger_records.py",
        (
            "            await self.create_key(chunk_key_path(metadata.ledger_id, chunk.name), encode(chunk.contents))\n"
            "        key, value = ledger_key_path(metadata.ledger_id), encode(metadata)\n"
            "        try:\n"
            '            version = await self.persist(f"changing {key}", lambda: self.metastore.put(key, value, expected))\n'
        ),
        (
            "        key, value = ledger_key_path(metadata.ledger_id), encode(metadata)\n"
            "        try:\n"
            '            version = await self.persist(f"changing {key}", lambda: self.metastore.put(key, value, expected))\n'
            "            for chunk in new_chunks(metadata.chunks):\n"
            "                key = chunk_key_path(metadata.ledger_id, chunk.name)\n"
            "                await self.create_key(key, encode(chunk.contents))\n"
        ),
        "a client that is killed in between leaves a record that names chunks which never come to be",
    ),
    _mutant(
        "half-trimmed-chunk-forgotten",
        "client/ledger_records.py",
        "if chunk.level > 1 and chunk.last_entry_id < metadata.trim_to:",
        "if chunk.level > 1:",
        "a chunk of chunks that was loaded and cut takes those in it along that the record names now by themselves",
    ),
    _mutant(
        "lower-chunks-left-behind",
        "client/ledger_records.py",
        "await self._delete_chunks(metadata, contents.chunks)",
        "pass",
        "each trim of a chunk of chunks leaves those within it in the metastore",
    ),
    _mutant(
        "chunks-outlive-their-ledger",
        "client/ledger_records.py",
        "if known is not None and (known.chunks or known.unnamed):",
        "if known is not None and known.unnamed and known.chunks:",
        "a deleted ledger's chunks stay in the metastore until somebody repairs the cluster",
    ),
    # -- names (protocol/chunks.py) -----------------------------------------------------------------------------------
    _mutant(
        "two-racers-share-a-name",
        "protocol/chunks.py",
        '{self.level}-{self.version}-{self.digest}"',
        '{self.level}-{self.version}"',
        "two clients that change different fragments upon one version share a name: the winner's record names the loser's chunk",
    ),
    _mutant(
        "name-is-used-again",
        "protocol/chunks.py",
        '{self.level}-{self.version}-{self.digest}"',
        '{self.level}-0-{self.digest}"',
        "a chunk gets the name of an earlier one with the same contents, just as a slow client deletes that as its own garbage",
    ),
    # -- packing and loading (protocol/chunks.py, protocol/ledger_metadata.py) ----------------------------------------
    _mutant(
        "run-loses-its-rest",
        "protocol/chunks.py",
        "        found += items[stop:end]\n",
        "        found += items[stop:end] if is_last and level == 1 else ()\n",
        "chunks that are too few for one of the next level are dropped: their entries belong to the fragment before them",
    ),
    _mutant(
        "levels-out-of-order",
        "protocol/chunks.py",
        "is_last = end == len(items) or _level(items[end]) < level",
        "is_last = True",
        "fragments that were loaded stay between chunks of a higher level, and the record can't be written",
    ),
    _mutant(
        "gaps-left-out-of-chunks",
        "protocol/chunks.py",
        "tuple(gap for gap in gaps if first <= gap.first_entry_id <= last_entry_id) if level == 1 else (),",
        "(),",
        "copies that are known to lack are forgotten with the fragment's move, and count as there (W7)",
    ),
    _mutant(
        "loaded-chunk-stays-named",
        "protocol/ledger_metadata.py",
        "            unnamed=(*self.unnamed, *found),\n",
        "            unnamed=self.unnamed,\n",
        "a repair takes the chunks that were loaded for garbage, and deletes what the record names",
    ),
    _mutant(
        "trimmed-chunk-forgotten",
        "protocol/ledger_metadata.py",
        "unnamed = (*self.unnamed, *dropped)",
        "unnamed = self.unnamed",
        "each trim leaves the chunks that it dropped in the metastore",
    ),
    _mutant(
        "trim-keeps-a-chunk",
        "protocol/ledger_metadata.py",
        "kept = tuple(chunk for chunk in self.chunks if chunk.first_entry_id > first)",
        "kept = self.chunks",
        "the record names a chunk below its own beginning: readers find entries that bookies have dropped",
    ),
    _mutant(
        "stamp-ends-behind-its-chunk",
        "protocol/ledger_metadata.py",
        "return min(end, *ahead) if ahead else end",
        "return end",
        "a client that has not loaded a chunk reads a deposed writer's entries on into the terms that are in it (R7)",
    ),
    _mutant(
        "unloaded-fragments-are-one",
        "protocol/fragment_copies.py",
        "if metadata.chunks:  # behind a fragment",
        "if False:  # behind a fragment",
        "a repair takes a loaded fragment and the chunk behind it for one, and asks the wrong bookies for its entries (F2)",
    ),
    # -- reading and collecting (records/chunks.py) -------------------------------------------------------------------
    _mutant(
        "stale-head-kept-after-trim",
        "records/chunks.py",
        "if found.version == before.version:",
        "if True:",
        "a reader that has an old record, while a trim deletes the chunk that it names, reports a damaged metastore",
    ),
    _mutant(
        "chunk-collected-before-it-is-named",
        "records/chunks.py",
        "if name not in named and (version is None or made_upon(name) < version)",
        "if name not in named",
        "a repair deletes a chunk between its creation and the compare-and-set that names it",
    ),
    _mutant(
        "chunk-collected-upon-its-version",
        "records/chunks.py",
        "made_upon(name) < version)",
        "made_upon(name) <= version)",
        "a repair deletes a chunk that a compare-and-set upon the current version is about to name",
    ),
    _mutant(
        "only-top-chunks-are-named",
        "records/chunks.py",
        "frozenset(chunk.name for chunk in metadata.unnamed), read.version",
        "frozenset(each.name for each in metadata.unnamed if each.level == metadata.unnamed[0].level), read.version",
        "a repair deletes all chunks that are in other chunks",
    ),
    _mutant(
        "chunk-is-not-compared",
        "records/chunks.py",
        "if faults := contents.faults(chunk):",
        "if faults := contents.faults(chunk)[:0]:",
        "a chunk that was damaged or put under another name is believed",
    ),
    # -- users --------------------------------------------------------------------------------------------------------
    _mutant(
        "bookie-sees-the-head-only",
        "bookie/releasing.py",
        "from replog.records.chunks import read_whole_ledger\n",
        (
            "from replog.records.chunks import read_ledger\n\n"
            "async def read_whole_ledger(get, ledger_id):\n"
            "    return await read_ledger(get, ledger_id, lambda _chunk: False)\n"
        ),
        "a bookie keeps permanently what was moved away from it in fragments that are in chunks (F5)",
    ),
    _mutant(
        "write-quorum-ignores-chunks",
        "repair/completion.py",
        "while any(chunk.last_entry_id >= progress.metadata.full_before for chunk in progress.metadata.chunks):",
        "while False:",
        "a close says that all copies are there, and has not looked at the fragments in chunks (W8)",
    ),
    _mutant(
        "reader-guesses-an-unlisted-fragment",
        "protocol/reading.py",
        "if self.metadata.chunks and (listed := self.metadata.listed_through(self.next_entry_id)) < last:",
        "if False and (listed := 0):",
        "a reader asks the bookies of another fragment for entries whose chunk it has not loaded",
    ),
    _mutant(
        "reader-waits-for-what-is-unlisted",
        "protocol/reading.py",
        "            self._forget_unlisted()\n",
        "            pass\n",
        "a reader whose record was read for an earlier entry asks bookies of another fragment, or stops with a failed assertion",
    ),
)
