"""Readers whose record was read for an earlier entry: the chunk of what comes next is loaded first, and nobody guesses (M4)."""

from __future__ import annotations

import pytest

from replog.protocol import chunks as index
from replog.protocol.digest import DigestType
from replog.protocol.effects import Delivered, Effect, ReadMetadata, SendRead
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.protocol.reading import LedgerReading
from tests.protocol.test_reading import DIGEST, as_they_are, build

FRAGMENTS = 13


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "HEAD_FRAGMENTS", 2)
    monkeypatch.setattr(index, "CHUNK_ITEMS", 3)


def record(quorum: Quorum, *loaded_at: int) -> LedgerMetadata:
    """A ledger of fragments with one entry each, whose terms rise by one with every fourth. With the chunks of these entries."""
    fragments = tuple(Fragment(each, ("a", "b", "c"), 1 + each // 4) for each in range(FRAGMENTS))
    term = fragments[-1].term
    whole = LedgerMetadata(
        7, quorum, DigestType.HMAC_SHA256, "", fragments, term=term, open_term=term, is_unbounded=True, owner="nonce"
    )
    found = whole.packed(1)
    while wanted := [each for each in found.chunks if any(map(each.holds, loaded_at))]:
        found = found.loaded({each: each.contents for each in wanted if each.contents is not None})
    return found


def reads(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(each.entry_id, each.stamp) for each in effects if isinstance(each, SendRead)]


@pytest.mark.parametrize("answer", ["absent", "unknown", "slow"])
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
def test_answer_is_useless_when_its_chunk_is_not_loaded_any_more(quorum: Quorum, answer: str) -> None:
    """A refresh that was begun before the reader went on: an assertion failed in `_ask_next`, or, without assertions, bookies of
    another fragment were asked."""
    machine = LedgerReading(record(quorum, 3, 4, 5), DIGEST, 3, as_they_are)
    machine.read_on()
    asked = reads(machine.take_effects())
    assert (3, 1) in asked
    machine.metadata_read(record(quorum))
    assert machine.take_effects() == [ReadMetadata(7, 3)]
    for entry_id, _ in asked:
        if answer == "slow":
            machine.read_slow(entry_id)
        else:
            getattr(machine, f"read_{answer}")(0, entry_id)
    assert machine.take_effects() == []
    machine.metadata_read(record(quorum, 3))
    assert (3, 1) in reads(machine.take_effects())


def test_reader_continues_when_the_record_was_read_earlier() -> None:
    machine = LedgerReading(record(Quorum(3, 3, 2), 3), DIGEST, 3, as_they_are)
    machine.read_on()
    for entry_id in (3, 4, 5):
        machine.read_found(0, entry_id, [build(entry_id, 1, [b"x"], 11, stamp=1 + entry_id // 4)])
        machine.read_on()
    assert machine.next_entry_id == 6
    machine.take_effects()
    machine.metadata_read(record(Quorum(3, 3, 2), 3))
    assert machine.take_effects() == [ReadMetadata(7, 6)]
    machine.metadata_read(record(Quorum(3, 3, 2), 6))
    assert reads(machine.take_effects()) == [(6, 2)]


def test_entries_behind_an_unloaded_chunk_are_asked_again() -> None:
    """Striped: entry 4 is held, entry 3 is awaited, and the record that is read now has neither."""
    quorum = Quorum(3, 2, 2)
    machine = LedgerReading(record(quorum, 3, 4, 5), DIGEST, 3, as_they_are)
    machine.read_on()
    machine.take_effects()
    machine.read_found(1, 4, [build(4, 3, [b"four"], 11, stamp=2)])
    machine.metadata_read(record(quorum))
    machine.metadata_read(record(quorum, 3, 4, 5))
    asked = {entry_id for entry_id, _ in reads(machine.take_effects())}
    assert {3, 4} <= asked
    machine.read_found(0, 3, [build(3, 3, [b"three"], 11, stamp=1)])
    machine.read_found(1, 4, [build(4, 3, [b"four"], 11, stamp=2)])
    spans = [
        (each.first_entry_id, each.last_entry_id) for each in machine.take_effects() if isinstance(each, Delivered)
    ]
    assert spans == [(3, 3), (4, 4)]


@pytest.mark.parametrize("entry_id", [0, 5])
def test_record_is_reread_when_no_bookie_has_the_entries(entry_id: int) -> None:
    """Otherwise the record that is read names the entry's chunk only, and the reader never says that the entry is lost."""
    quorum = Quorum(3, 3, 2)
    machine = LedgerReading(record(quorum, entry_id), DIGEST, entry_id, as_they_are)
    machine.read_on()
    for _ in range(3):
        (asked,) = machine.take_effects()
        assert isinstance(asked, SendRead)
        machine.read_absent(asked.index, entry_id)
    assert machine.take_effects() == [ReadMetadata(7, entry_id)]
