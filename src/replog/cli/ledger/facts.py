"""The known facts about a ledger: its record, and the answers of its bookies about its end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import attrs

from replog.api import Client
from replog.cli.entries import as_time
from replog.client.ledger_reader import LedgerReader
from replog.errors import ReplogError
from replog.protocol.fragment_copies import archived_part
from replog.protocol.model import LedgerMetadata

_MEASURED_MAX = 64  # writers of a ledger: each costs a read of its last batch


@attrs.frozen
class Written:
    """The entries that the writer of one term wrote, and their payload bytes, if they are known."""

    term: int
    first_entry_id: int
    last_entry_id: int
    size_bytes: int | None = None


@attrs.frozen
class LedgerFacts:
    """A ledger's record, its last entry as far as is known (-1: none, None: unknown) and what each writer wrote, in order.

    A bounded ledger has one writer. `problem` says why something is not known."""

    metadata: LedgerMetadata
    last_entry_id: int | None
    written: tuple[Written, ...] = ()
    problem: str | None = None

    @property
    def entries(self) -> int | None:
        """The number of its entries, as far as is known."""
        return None if self.last_entry_id is None else self.last_entry_id + 1 - self.metadata.trim_to

    @property
    def size_bytes(self) -> int | None:
        """The payload bytes of its entries; None if those of some are unknown."""
        if (
            self.entries is None
            or sum(each.last_entry_id + 1 - each.first_entry_id for each in self.written) < self.entries
        ):
            return None
        sizes = [each.size_bytes for each in self.written if each.size_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.written) else None

    @property
    def archived_bytes(self) -> int | None:
        """The payload bytes of its archived entries; None if they are unknown, as of a ledger of which a part is archived."""
        is_archived = archived_part(self.metadata)
        return self.size_bytes if is_archived else (None if is_archived is None else 0)


async def last_entry_of(client: Client, ledger_id: int, password: bytes) -> int:
    """The last entry of a ledger, as far as is known; -1 if it has none. Asks its bookies if it is not closed.

    Raises as `open_ledger`."""
    metadata = await client.ledger_metadata(ledger_id)
    if metadata.last_entry_id is not None:
        return metadata.last_entry_id
    async with client.open_ledger(ledger_id, password=password) as reader:
        return reader.last_add_confirmed


async def facts_of(client: Client, ledger_id: int, password: bytes, *, with_size: bool) -> LedgerFacts:
    """The known facts about a ledger, with its sizes only if `with_size`: what the record does not have costs a read for
    each writer.

    Raises `LedgerNotFoundError`, `MetastoreError`. If bookies fail, the result says so."""
    metadata = await client.ledger_metadata(ledger_id)
    last = metadata.last_entry_id
    problem = None
    written: tuple[Written, ...] = ()
    try:
        if last is None:
            last = await last_entry_of(client, ledger_id, password)
        written = tuple(_by_writer(metadata, last))
        if with_size and len(written) > _MEASURED_MAX:
            problem = f"it has {len(written)} writers: the sizes of more than {_MEASURED_MAX} are not asked for"
        elif with_size and len(written) == 1 and (size_bytes := _recorded_bytes(metadata)) is not None:
            # Not a read of each segment: of an archived one that is three requests to its store.
            written = (attrs.evolve(written[0], size_bytes=size_bytes),)
        elif with_size and written:
            async with client.open_ledger(ledger_id, first=written[0].first_entry_id, password=password) as reader:
                written = tuple([await _measured(reader, each, metadata.trim_to) for each in written])
    except ReplogError as error:
        problem = str(error)
    return LedgerFacts(metadata, last, written, problem)


def _recorded_bytes(metadata: LedgerMetadata) -> int | None:
    """The payload bytes of a ledger, if the client that closed it has recorded them."""
    contents = metadata.contents
    return None if contents is None or metadata.trim_to else contents.size_bytes


def _by_writer(metadata: LedgerMetadata, last_entry_id: int) -> Iterable[Written]:
    """The entries of a ledger up to this one, in parts that one writer wrote each."""
    firsts = [
        (term, next(fragments).first_entry_id)
        for term, fragments in groupby(metadata.fragments, lambda each: each.term)
    ]
    ends = [*(first - 1 for _, first in firsts[1:]), last_entry_id]
    for (term, first), end in zip(firsts, ends, strict=True):
        if first <= min(end, last_entry_id):
            yield Written(term, first, min(end, last_entry_id))


async def _measured(reader: LedgerReader, written: Written, trim_to: int) -> Written:
    """With the size: each batch has the length of all that its writer wrote up to it."""
    size_bytes, _ = await _lengths(reader, written.last_entry_id)
    # What was trimmed of the first writer's entries is not counted.
    before_bytes = (await _lengths(reader, trim_to))[1] if 0 < trim_to == written.first_entry_id else 0
    return attrs.evolve(written, size_bytes=max(0, size_bytes - before_bytes))


async def _lengths(reader: LedgerReader, entry_id: int) -> tuple[int, int]:
    """The payload bytes that the writer of this entry wrote up to and with it, and before it."""
    async for batch in reader.batches_between(entry_id, entry_id):
        return batch.ledger_bytes, batch.ledger_bytes - batch.payload_bytes
    raise AssertionError("a range that has an entry is not empty")


def has_password(metadata: LedgerMetadata) -> bool:
    """True if the ledger needs a password."""
    # The record does not say it, but anybody can compute the check of the empty password.
    return not metadata.is_opened_by(b"")


def as_json(facts: LedgerFacts) -> dict[str, object]:
    """All fields for programs, without keys."""
    metadata = facts.metadata
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    ends: list[int | None] = [*(start - 1 for start in starts[1:]), metadata.last_entry_id]
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "entries": facts.entries,
        "last_entry_id": facts.last_entry_id,
        "size_bytes": facts.size_bytes,
        "quorum": attrs.asdict(metadata.quorum),
        "digest_type": metadata.digest_type.name.lower(),
        "has_password": has_password(metadata),
        "created_at": time_of(metadata.created_at_ms),
        "custom": dict(metadata.custom),
        "fragments": [
            {
                "first_entry_id": each.first_entry_id,
                "last_entry_id": end,
                "ensemble": list(each.ensemble),
                "term": each.term,
                "archive": each.archive or None,
            }
            for each, end in zip(metadata.fragments, ends, strict=True)
        ],
        "writers": [attrs.asdict(each) for each in facts.written],
        "gaps": [attrs.asdict(gap) for gap in metadata.gaps],
        "unbounded": metadata.is_unbounded,
        "term": metadata.term,
        "open_term": metadata.open_term,
        "trimmed_before": metadata.trim_to,
        "durability": metadata.durability.value,
        "archived_bytes": facts.archived_bytes,
        "problem": facts.problem,
    }


def time_of(created_at_ms: int) -> str | None:
    """The creation time as ISO 8601; None if it is unknown."""
    return as_time(created_at_ms * 1_000_000) if created_at_ms else None


def time_for_people(created_at_ms: int) -> str | None:
    """The same, without fractions of a second."""
    return as_time(created_at_ms * 1_000_000, timespec="seconds") if created_at_ms else None
