"""Index chunks of a ledger's record: packing and loading lose nothing, and what is damaged is refused (M4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog.errors import MetastoreCorruptError
from replog.protocol import chunks as index
from replog.protocol.chunks import Chunk, ChunkContents, is_packed, new_chunks
from replog.protocol.digest import DigestType
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.gaps import Gap
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.records.chunks import decode_chunk
from replog.records.encoding import encode
from replog.records.ledgers import decode_ledger
from replog.records.paths import chunk_key_path, ledger_key_path

BOOKIES = ("a", "b", "c", "d")


def unbounded(fragments: Sequence[Fragment], gaps: Sequence[Gap] = ()) -> LedgerMetadata:
    return LedgerMetadata(
        7,
        Quorum(2, 2, 1),
        DigestType.CRC32C,
        "0123",
        tuple(fragments),
        term=fragments[-1].term,
        open_term=fragments[-1].term,
        is_unbounded=True,
        owner="nonce",
        trim_to=fragments[0].first_entry_id,
        gaps=tuple(gaps),
    )


class Store:
    """A record and its chunks, as a metastore has them: encoded."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.version = 1
        self.chunks: dict[str, bytes] = {}
        self.value = b""
        self.write(metadata)

    def write(self, metadata: LedgerMetadata) -> None:
        packed = metadata.packed(self.version)
        assert is_packed(packed.chunks, packed.fragments)
        for chunk in new_chunks(packed.chunks):
            assert chunk.contents is not None
            assert chunk.name not in self.chunks, "a name is used once"
            self.chunks[chunk.name] = encode(chunk.contents)
        self.value = encode(packed)
        self.version += 1

    def head(self) -> LedgerMetadata:
        return decode_ledger(ledger_key_path(7), self.value)

    def load(self, metadata: LedgerMetadata, chunks: Sequence[Chunk]) -> LedgerMetadata:
        found: Mapping[Chunk, ChunkContents] = {
            each: decode_chunk(chunk_key_path(7, each.name), self.chunks[each.name], each) for each in chunks
        }
        return metadata.loaded(found)

    def at(self, entry_id: int) -> LedgerMetadata:
        metadata = self.head()
        while not metadata.is_listed(entry_id):
            metadata = self.load(metadata, [each for each in metadata.chunks if each.holds(entry_id)])
        return metadata

    def whole(self) -> LedgerMetadata:
        metadata = self.head()
        while metadata.chunks:
            metadata = self.load(metadata, metadata.chunks)
        return metadata


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "HEAD_FRAGMENTS", 2)
    monkeypatch.setattr(index, "CHUNK_ITEMS", 3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("roll", "take over", "fill", "trim", "gap")), st.integers(0, 199)), max_size=25)
)
def test_record_keeps_every_fragment_under_any_change(changes: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "HEAD_FRAGMENTS", 2)
        patch.setattr(index, "CHUNK_ITEMS", 3)
        _check_changes(changes)


def _check_changes(changes: list[tuple[str, int]]) -> None:
    expected = unbounded([Fragment(0, ("a", "b"), 1)])
    store = Store(expected)
    for what, number in [("roll", 1)] * 12 + changes:
        end = expected.last_fragment.first_entry_id
        if what in ("roll", "take over"):
            term = expected.term + (what == "take over")
            fragment = Fragment(end + 1 + number % 7, (BOOKIES[number % 4], BOOKIES[(number + 1) % 4]), term)
            expected = attrs.evolve(expected.with_fragment(fragment), term=term, open_term=term)
            store.write(attrs.evolve(store.head().with_fragment(fragment), term=term, open_term=term))
        elif what == "trim":
            expected = expected.trimmed(number)
            store.write(store.at(min(number, end)).trimmed(number))
        else:
            place = expected.fragments[number % len(expected.fragments)].first_entry_id
            change = _filled if what == "fill" else _with_gap
            expected = change(expected, place, number)
            store.write(change(store.at(place), place, number))
        whole = store.whole()
        assert whole == expected
        named = {chunk.name for chunk in whole.unnamed}
        store.chunks = {name: value for name, value in store.chunks.items() if name in named}
        assert len(store.head().fragments) < 5
    for fragment in expected.fragments:
        metadata = store.at(fragment.first_entry_id)
        assert metadata.fragment_of(fragment.first_entry_id) == fragment
        assert metadata.last_fragment == expected.last_fragment
        end = metadata.listed_through(fragment.first_entry_id)
        true_end = expected.end_of_stamp(fragment.term)
        assert min(end, true_end) <= metadata.end_of_stamp(fragment.term) <= true_end


def _filled(metadata: LedgerMetadata, place: int, number: int) -> LedgerMetadata:
    new = (BOOKIES[number % 4], BOOKIES[(number + 2) % 4])
    fragments = [
        attrs.evolve(each, ensemble=new) if each.first_entry_id == place else each for each in metadata.fragments
    ]
    return attrs.evolve(metadata, fragments=tuple(fragments))


def _with_gap(metadata: LedgerMetadata, place: int, number: int) -> LedgerMetadata:
    return metadata.with_gaps((*metadata.gaps, Gap(number % 2, place, place)))


def test_levels_grow_with_the_logarithm_of_the_fragments() -> None:
    store = Store(unbounded([Fragment(number, ("a", "b"), 1) for number in range(2500)]))
    head = store.head()
    assert [chunk.level for chunk in head.chunks] == [2] * 2 + [1] * 13
    assert len(head.fragments) == 36
    assert len(store.whole().fragments) == 2500


@pytest.mark.usefixtures("small_chunks")
def test_chunk_is_refused_when_it_contradicts_its_name() -> None:
    store = Store(unbounded([Fragment(number, ("a", "b"), 1 + number // 4) for number in range(9)]))
    chunk, other = store.head().chunks
    for wrong in (
        attrs.evolve(chunk, digest="0" * 32),
        attrs.evolve(chunk, first_entry_id=1),
        attrs.evolve(chunk, level=2),
        attrs.evolve(chunk, last_term=9),
    ):
        with pytest.raises(MetastoreCorruptError):
            decode_chunk("key", store.chunks[chunk.name], wrong)
    for value in (store.chunks[other.name], b"{}", b'{"format":1,"fragments":[],"gaps":[],"chunks":[]}', b"\xff"):
        with pytest.raises(MetastoreCorruptError, match="key"):
            decode_chunk("key", value, chunk)


@pytest.mark.usefixtures("small_chunks")
def test_record_is_refused_when_it_skips_entries_between_chunks() -> None:
    store = Store(unbounded([Fragment(number, ("a", "b"), 1) for number in range(9)]))
    head = store.head()
    for chunks in (head.chunks[1:], head.chunks[:1], (attrs.evolve(head.chunks[0], last_entry_id=1), head.chunks[1])):
        damaged = encode(attrs.evolve(head, chunks=chunks))
        with pytest.raises(MetastoreCorruptError, match=r"chunks|fragments"):
            decode_ledger(ledger_key_path(7), damaged)


@pytest.mark.usefixtures("small_chunks")
def test_fixed_fragment_ends_before_an_unloaded_chunk() -> None:
    """F2: a filler takes one loaded fragment, and must not ask its bookies for entries of the next ones."""
    store = Store(unbounded([Fragment(number, ("a", "b"), 1) for number in range(20)]))
    for entry_id in range(18):
        found = {each.first_entry_id: each.last_entry_id for each in fixed_fragments(store.at(entry_id))}
        assert found[entry_id] == entry_id
        assert all(first == last for first, last in found.items())


@pytest.mark.usefixtures("small_chunks")
def test_close_keeps_chunks() -> None:
    store = Store(unbounded([Fragment(number, ("a", "b"), 1) for number in range(9)]))
    store.write(store.head().closed_at(7))
    whole = store.whole()
    assert whole.state is LedgerState.CLOSED
    assert [each.first_entry_id for each in whole.fragments] == list(range(8))
