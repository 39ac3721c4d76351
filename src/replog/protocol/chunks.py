"""Index chunks: immutable parts of a ledger's record, for the fragments that have left the record itself (M4).

A record keeps its last fragments, and names chunks for those before them: a chunk of level 1 has fragments and their
gaps, one of a higher level has chunks of the level below. So a record stays small however long its ledger lives, and
each fragment is a few reads away. A change of a fragment writes the chunks above it again, under new names.

A name has the entries, the version of the record upon which the chunk was made, and a digest of its contents. The
record is changed upon that version only, and versions rise: a chunk that was made upon an older version than the
current one, and is not named by that, is never named again. So anybody may delete it.

Invariants:

- The chunks and the listed fragments of a record have every entry from `trim_to` on exactly once.
- All chunks of a packed record lie before its fragments, the higher levels first.
- The contents of a chunk never change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import attrs

from replog.protocol.fragments import Fragment
from replog.protocol.gaps import Gap

HEAD_FRAGMENTS = 32  # that a record keeps at least; it has less than twice as many
CHUNK_ITEMS = 32  # fragments or chunks in a chunk, at most
_DIGEST_DIGITS = 32


@attrs.frozen
class Chunk:
    """A chunk as a record names it. `last_term` is that of its last fragment, `version` that of the record upon which
    it was made. `contents` is None, unless the chunk is about to be written."""

    first_entry_id: int
    last_entry_id: int
    last_term: int
    level: int
    version: int
    digest: str
    contents: ChunkContents | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def name(self) -> str:
        """The last word of its key."""
        return f"{self.first_entry_id}-{self.last_entry_id}-{self.level}-{self.version}-{self.digest}"

    def holds(self, entry_id: int) -> bool:
        """True if the entry belongs to a fragment in this chunk."""
        return self.first_entry_id <= entry_id <= self.last_entry_id

    def bare(self) -> Chunk:
        """The same without its contents."""
        return self if self.contents is None else attrs.evolve(self, contents=None)


@attrs.frozen
class ChunkContents:
    """The contents of a chunk: of level 1 fragments and their gaps, of a higher level chunks."""

    fragments: tuple[Fragment, ...] = ()
    gaps: tuple[Gap, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    def digest(self) -> str:
        """Half of a SHA-256 of its contents."""
        assert not (self.fragments and self.chunks), "a chunk has items of one level"
        fragments: list[list[object]] = [
            [each.first_entry_id, each.term, *each.ensemble, *([{"archive": each.archive}] if each.archive else [])]
            for each in self.fragments
        ]
        chunks = [each.name for each in self.chunks]
        text = json.dumps([fragments, [attrs.astuple(gap) for gap in self.gaps], chunks], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]

    def faults(self, chunk: Chunk) -> list[str]:
        """The reasons why these cannot be the contents of this chunk."""
        items: Sequence[Fragment | Chunk] = self.fragments or self.chunks
        levels = {_level(each) for each in items}
        if levels != {chunk.level - 1} or (self.fragments and self.chunks):
            return [f"it has items of the levels {sorted(levels)}, in a chunk of level {chunk.level}"]
        if (items[0].first_entry_id, _last_term(items[-1])) != (chunk.first_entry_id, chunk.last_term):
            return [f"it begins at entry {items[0].first_entry_id}, and ends in term {_last_term(items[-1])}"]
        return [] if self.digest() == chunk.digest else [f"its digest is {self.digest()}"]


Item = Fragment | Chunk


def _level(item: Item) -> int:
    return item.level if isinstance(item, Chunk) else 0


def _last_term(item: Item) -> int:
    return item.last_term if isinstance(item, Chunk) else item.term


def in_order(chunks: Iterable[Chunk], fragments: Iterable[Fragment]) -> list[Item]:
    """Chunks and fragments by their first entries."""
    return sorted((*chunks, *fragments), key=lambda item: item.first_entry_id)


def is_packed(chunks: Sequence[Chunk], fragments: Sequence[Fragment]) -> bool:
    """True if a record may be written with these chunks and fragments."""
    if len(fragments) >= HEAD_FRAGMENTS + CHUNK_ITEMS:
        return False
    if not chunks:
        return True
    is_before = chunks[-1].last_entry_id < fragments[0].first_entry_id
    levels = [each.level for each in chunks]
    is_short = all(levels.count(level) < CHUNK_ITEMS for level in set(levels))
    return is_before and is_short and levels == sorted(levels, reverse=True)


def packed(
    chunks: Sequence[Chunk], fragments: Sequence[Fragment], gaps: Sequence[Gap], version: int
) -> tuple[tuple[Chunk, ...], tuple[Fragment, ...], tuple[Gap, ...]]:
    """The same as chunks, fragments and gaps that may stand in a record. New chunks have their contents, and are made upon this
    version of the record."""
    items = in_order(chunks, fragments)
    level = 1
    # From the lowest level up, since the chunks that one level gets may be enough for a chunk of the next.
    while level == 1 or any(_level(each) >= level - 1 for each in items):
        items = _raised(items, level, gaps, version)
        level += 1
    found = tuple(each for each in items if isinstance(each, Chunk))
    kept = tuple(each for each in items if isinstance(each, Fragment))
    assert kept[-1:] == tuple(fragments[-1:]), "the last fragment stays in the record (M4)"
    return found, kept, tuple(gap for gap in gaps if gap.first_entry_id >= kept[0].first_entry_id)


def _raised(items: Sequence[Item], level: int, gaps: Sequence[Gap], version: int) -> list[Item]:
    """The items, with runs of those below this level as chunks of it: of full size where lower ones follow, or nothing; all of a
    run where a higher one follows."""
    found: list[Item] = []
    place = 0
    while place < len(items):
        end = place
        while end < len(items) and _level(items[end]) == level - 1:
            end += 1
        if end == place:
            found.append(items[place])
            place += 1
            continue
        is_last = end == len(items) or _level(items[end]) < level
        kept = HEAD_FRAGMENTS if level == 1 else 0
        moved = (end - place - kept) // CHUNK_ITEMS * CHUNK_ITEMS if is_last else end - place
        stop = place + max(0, moved)
        for start in range(place, stop, CHUNK_ITEMS):
            after = min(start + CHUNK_ITEMS, stop)
            # There is always a next one: the last fragment stays.
            found.append(_chunk(items[start:after], items[after].first_entry_id - 1, level, gaps, version))
        found += items[stop:end]
        place = end
    return found


def _chunk(items: Sequence[Item], last_entry_id: int, level: int, gaps: Sequence[Gap], version: int) -> Chunk:
    first = items[0].first_entry_id
    contents = ChunkContents(
        tuple(each for each in items if isinstance(each, Fragment)),
        tuple(gap for gap in gaps if first <= gap.first_entry_id <= last_entry_id) if level == 1 else (),
        tuple(each for each in items if isinstance(each, Chunk)),
    )
    assert first <= last_entry_id, "what is in a chunk has entries"
    return Chunk(first, last_entry_id, _last_term(items[-1]), level, version, contents.digest(), contents)


def new_chunks(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The chunks that are about to be written, inner ones first."""
    found: list[Chunk] = []
    for each in chunks:
        if each.contents is not None:
            found += [*new_chunks(each.contents.chunks), each]
    return found
