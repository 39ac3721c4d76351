"""The records of ledgers in the metastore, and listing the ledgers that exist."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import attrs

from replog.protocol.gaps import merged
from replog.protocol.model import WRITER_TERM, LedgerMetadata, LedgerState
from replog.records.encoding import corrupt, decode
from replog.records.paths import (
    ARCHIVE_PLACE,
    LEAF_DIGITS,
    LEAF_LEDGERS,
    LEDGER_ID_MAX,
    LEDGER_KEY_SHAPES,
    parse_ledger_key,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from replog.abc import Metastore, ValuesPage, Versioned

_PAGE_LEDGERS = 1000


def decode_ledger(key: str, value: bytes) -> LedgerMetadata:
    """The record in the value of this ledger's key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    metadata = decode(key, value, LedgerMetadata)
    faults = [f"ledger_id is {metadata.ledger_id}"] if metadata.ledger_id != parse_ledger_key(key) else []
    faults += _ledger_faults(metadata)
    if faults:
        raise corrupt(key, faults)
    return metadata


def _ledger_faults(metadata: LedgerMetadata) -> list[str]:
    """The faults of a record whose fields all have the right types."""
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    faults = _chunk_faults(metadata)
    first = metadata.chunks[-1].last_entry_id + 1 if metadata.chunks else metadata.trim_to
    if starts[:1] != [first] or not _ascends(starts):
        faults.append(f"fragments: they begin at {starts}, and must rise from {first}")
    faults += [
        f"fragments: {list(each.ensemble)} are not {metadata.quorum.ensemble} distinct bookies"
        for each in metadata.fragments
        if not metadata.quorum.ensemble == len(each.ensemble) == len(set(each.ensemble))
    ]
    is_closed = metadata.state is LedgerState.CLOSED
    archived = [each.archive for each in metadata.fragments[: None if is_closed else -1] if each.archive]
    named = [each.archive for each in metadata.fragments if each.archive]
    if named != archived or not all(map(ARCHIVE_PLACE.fullmatch, named)):
        faults.append(f"fragments: {named} are not archives with a copy each, of fragments whose ends are fixed")
    if is_closed != (metadata.last_entry_id is not None):
        faults.append(f"last_entry_id: {metadata.last_entry_id} in a ledger that is {metadata.state.value}")
    if metadata.last_entry_id is not None and metadata.last_entry_id < -1:
        faults.append(f"last_entry_id: {metadata.last_entry_id} is not an entry id")
    if metadata.contents is not None and (metadata.last_entry_id, metadata.is_unbounded) != (
        metadata.contents.entries - 1,
        False,
    ):
        faults.append(
            f"contents: {metadata.contents.entries} entries of a ledger that ends at {metadata.last_entry_id}"
        )
    fixed_end = starts[-1:] if metadata.last_entry_id is None else [metadata.last_entry_id + 1]
    # Copies below a mark that is too high would never be looked for (W8).
    if fixed_end and not 0 <= metadata.full_before <= fixed_end[0]:
        faults.append(
            f"full_before: {metadata.full_before} is not one of 0 to {fixed_end[0]}, where the fixed part ends"
        )
    # Gaps refer to fragments: in a record whose fragments are impossible they could only be misjudged.
    return faults or _term_faults(metadata) or _gap_faults(metadata)


def _chunk_faults(metadata: LedgerMetadata) -> list[str]:
    """The faults in the chunks of a record: an entry outside all of them would be hidden from everybody (M4)."""
    first, faults = metadata.trim_to, []
    for chunk in metadata.chunks:
        if chunk.first_entry_id != first or chunk.last_entry_id < first or chunk.level < 1:
            faults.append(f"chunks: {chunk.name} does not go on from entry {first}")
        first = chunk.last_entry_id + 1
    return faults


def _term_faults(metadata: LedgerMetadata) -> list[str]:
    """The faults in the terms of a record (T2). A ledger that is read without its terms would be read wrongly."""
    terms = [*(chunk.last_term for chunk in metadata.chunks), *(fragment.term for fragment in metadata.fragments)]
    opened, claimed = metadata.open_term, metadata.term
    if terms[0] < WRITER_TERM or terms != sorted(terms) or not terms[-1] <= opened <= claimed:
        return [
            f"fragments: their terms are {terms}, of a ledger that was opened in term {opened}, claimed in {claimed}"
        ]
    if not metadata.is_unbounded and (terms[-1] != WRITER_TERM or metadata.trim_to != 0):
        return [f"fragments: their terms are {terms}, from entry {metadata.trim_to} on, of a bounded ledger"]
    return []


def _gap_faults(metadata: LedgerMetadata) -> list[str]:
    """The faults in the gaps of a record that is otherwise possible."""
    end = metadata.last_entry_id
    faults = []
    for gap in metadata.gaps:
        last = gap.first_entry_id if gap.last_entry_id is None else gap.last_entry_id
        if not 0 <= gap.index < metadata.quorum.ensemble or not 0 <= gap.first_entry_id <= last:
            faults.append(f"gaps: {list(attrs.astuple(gap))} is outside of the ensemble, or ends before it begins")
        elif end is not None and (gap.last_entry_id is None or last > end):
            faults.append(f"gaps: {list(attrs.astuple(gap))} goes beyond the last entry, {end}")
    if not faults and merged(metadata.gaps, metadata.fragments) != metadata.gaps:
        faults.append(
            f"gaps: {[list(attrs.astuple(gap)) for gap in metadata.gaps]} are not in order, each within a fragment"
        )
    return faults


def _ascends(numbers: list[int]) -> bool:
    return all(lower < higher for lower, higher in itertools.pairwise(numbers))


# -- listing ------------------------------------------------------------------------------------------------------


async def ledger_id_pages(metastore: Metastore) -> AsyncGenerator[list[int], None]:
    """All existing ids, ascending, in lists of 1 to `LEAF_LEDGERS` ids. Asks for the children of each key once.

    A ledger that is created or deleted meanwhile may be listed or not. Raises `MetastoreError`: then nothing is proven (B6). A
    caller that may stop early closes the generator (`contextlib.aclosing`).
    """
    async with aclosing(_leaves(metastore)) as leaves:
        async for leaf in leaves:
            if ids := _ids_of_leaf(leaf, await metastore.children(leaf)):
                yield ids


async def ledger_pages(
    metastore: Metastore, read: Callable[[str, Callable[[], Awaitable[ValuesPage]]], Awaitable[ValuesPage]]
) -> AsyncGenerator[list[tuple[int, Versioned]], None]:
    """All ledgers' records as they are stored, with their ids, ascending, some at a time: where there are many, a read for each
    would take the metastore's time. `read` calls what reads a page. As `ledger_id_pages` otherwise."""
    async with aclosing(_leaves(metastore)) as leaves:
        async for leaf in leaves:
            first: str | None = ""
            while first is not None:
                page = await read(f"reading {leaf}", partial(metastore.values_page, leaf, first, _PAGE_LEDGERS))
                if ids := _ids_of_leaf(leaf, list(page.values)):
                    yield list(zip(ids, page.values.values(), strict=True))
                first = page.next_first


async def _leaves(metastore: Metastore) -> AsyncGenerator[str, None]:
    """The keys right above those of ledgers, in the order of their ids."""
    # Short and long ids are below two keys, and the short ones are all lower.
    for prefix, shape in LEDGER_KEY_SHAPES.items():
        keys = [prefix]  # still to be listed, the lowest ids last
        while keys:
            key = keys.pop()
            if key.count("/") == len(shape) - 1:
                yield key
            else:
                # Their order as texts is that of the ids, since all words have their full width.
                keys += [f"{key}/{word}" for word in reversed(await metastore.children(key))]


def _ids_of_leaf(leaf: str, words: Sequence[str]) -> list[int]:
    """The ids of the keys `leaf/word`, ascending. Raises `MetastoreCorruptError`."""
    found: list[int] = []
    # Parsing a key takes long, and a leaf has up to 10 000: only the first key, and those of another shape, are parsed.
    # The lowest id of this leaf, once it is known: until then above all ids.
    base = LEDGER_ID_MAX + 1
    for word in words:
        if len(word) == LEAF_DIGITS and word.isdecimal() and word.isascii() and base + int(word) <= LEDGER_ID_MAX:
            found.append(base + int(word))
        else:
            found.append(parse_ledger_key(f"{leaf}/{word}"))
            base = found[-1] - found[-1] % LEAF_LEDGERS
    return sorted(found)


async def list_ledger_ids(metastore: Metastore) -> list[int]:
    """All existing ids, ascending, in one list: it may be large."""
    return [ledger_id async for page in ledger_id_pages(metastore) for ledger_id in page]
