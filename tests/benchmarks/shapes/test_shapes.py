"""What the cases of shapes rest on: ledgers that are all open, entries that are dealt out, and a look at what was confirmed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import replog
from benchmarks.setting import NotMeasured, Scale
from benchmarks.shapes import takeovers
from benchmarks.shapes.cases import COMPARISONS
from benchmarks.shapes.ledgers import _dealt, open_ledgers
from benchmarks.shapes.loads import OPTIONS, ends, fill
from benchmarks.shapes.places import majority
from replog.protocol.model import LedgerState


@asynccontextmanager
async def client_at(directory: Path) -> AsyncIterator[replog.Client]:
    async with replog.embed(directory, storage="memory", metastore="memory:", options=OPTIONS) as client:
        yield client


async def test_entries_are_dealt_out_evenly_and_all_are_confirmed(tmp_path: Path) -> None:
    async with client_at(tmp_path) as client:
        async with open_ledgers(client, 70) as writers:
            assert len({writer.ledger_id for writer in writers}) == 70
            await _dealt(writers, b"x", 70 * 3 + 5)
            assert [writer.last_add_confirmed for writer in writers] == [3] * 5 + [2] * 65
        closed = [await client.ledger_metadata(writer.ledger_id) for writer in writers]
        assert {each.state for each in closed} == {LedgerState.CLOSED}
        assert [each.last_entry_id for each in closed] == [3] * 5 + [2] * 65


@pytest.mark.parametrize("entries", [1, 999, 1000, 1001, 2500])
async def test_a_ledger_gets_the_requested_number_of_entries(tmp_path: Path, entries: int) -> None:
    async with client_at(tmp_path) as client, client.create_ledger() as writer:
        await fill(writer, 3, entries)
        assert (writer.last_add_confirmed, writer.length_bytes) == (entries - 1, 3 * entries)


async def test_takeover_with_lost_entries_is_not_measured(tmp_path: Path) -> None:
    async with client_at(tmp_path) as client:
        async with client.write_log("benchmark") as log:
            await fill(log, 3, 7)
        await takeovers._check(client, 7)
        with pytest.raises(NotMeasured, match="8 entries were confirmed, and 7 are there"):
            await takeovers._check(client, 8)


def test_the_largest_is_compared_with_the_smallest() -> None:
    found = ends({"bookies 1": {"us": 1.0}, "bookies 3": {"us": 3.0}, "bookies 9": {"us": 9.0}}, "bookies", (1, 3, 9))
    assert (found["bookies least"], found["bookies most"]) == ({"us": 1.0}, {"us": 9.0})
    assert len(found) == 5


def test_yardstick_of_copies_is_measured() -> None:
    """Three bookies, in any case."""
    assert {each.against for each in COMPARISONS if each.case.startswith("shapes-bookies")} == {"bookies 3"}
    assert 3 in Scale().shapes_bookies
    assert 3 in Scale().shapes_remote_bookies


@pytest.mark.parametrize(("bookies", "ack"), [(1, 1), (2, 2), (3, 2), (4, 3), (9, 5)])
def test_most_bookies_confirm(bookies: int, ack: int) -> None:
    assert majority(bookies).ack == ack
