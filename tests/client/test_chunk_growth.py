"""The cost of a long unbounded ledger for its metastore, counted: a hundred thousand fragments are used like ten (M4).

The table is in docs/reference/formats.md; the last test compares."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import pytest
import trio

import replog
from replog.protocol.model import Fragment
from tests.log.test_growth import DOCUMENT, Cost, CountingMetastore, counted

LENGTHS = (10, 1_000, 20_000)  # the last one is not in the table, and has as many levels
LENGTHS_LONG = (10, 1_000, 100_000)
HEADER = "| fragments | take over | read from the beginning | roll | trim one fragment |"
ROLLS = 64  # as many as two chunks have


async def costs_of(length: int, directory: Path) -> list[Cost]:
    metastore = CountingMetastore("ledger")
    async with replog.embed(directory, storage="memory", metastore=metastore) as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"first")
        ledger_id, records = writer.ledger_id, client._opened.ledgers.records
        metadata, version = await records.get_head(ledger_id)
        # No bookie has the entries of those in the middle: nothing here may ask for them.
        more = [Fragment(number, metadata.last_fragment.ensemble) for number in range(1, length)]
        await records.put(attrs.evolve(metadata, fragments=(*metadata.fragments, *more)), version)
        with counted(metastore) as reading:
            async with client.open_ledger(ledger_id) as reader:
                batch = await reader.receive_batch()
                assert batch is not None
                assert next(iter(batch)).data == b"first"
        taking_over = client.take_over_ledger(ledger_id)
        with counted(metastore) as opening:
            writer = await taking_over.__aenter__()
        with counted(metastore, ROLLS) as rolling:
            for _ in range(ROLLS):
                await writer.append(b"entry")
                await writer.roll()
        with counted(metastore, ROLLS) as trimming:
            for number in range(1, ROLLS + 1):
                # Whole fragments: the last one always stays.
                assert await client.trim_ledger(ledger_id, before=number) == number
        await taking_over.__aexit__(None, None, None)
        whole = await client.ledger_metadata(ledger_id)
        end = whole.last_fragment.first_entry_id
        assert [each.first_entry_id for each in whole.fragments] == list(range(ROLLS, end + 1))
        chunks = len(await metastore.children(f"ledger-chunks/{ledger_id}"))
        assert chunks <= len(whole.fragments) / 16, "what is no longer named is deleted"
    return [opening, reading, rolling, trimming]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, is_long: bool) -> dict[int, list[Cost]]:
    directory = tmp_path_factory.mktemp("growth")
    return {
        length: trio.run(costs_of, length, directory / str(length)) for length in (LENGTHS_LONG if is_long else LENGTHS)
    }


@pytest.mark.sized
@pytest.mark.slow
def test_no_operation_grows_with_the_ledger(table: dict[int, list[Cost]]) -> None:
    for few, many in zip(table[1_000], table[max(table)], strict=True):
        assert many.calls <= few.calls + 6, "a chunk is read, written and deleted on each of the two levels in between"
        assert many.bytes <= few.bytes + 10_000
    for costs in table.values():
        assert all(cost.bytes <= 40_000 for cost in costs)


@pytest.mark.sized
@pytest.mark.slow
def test_table_in_the_docs_matches_the_counts(table: dict[int, list[Cost]]) -> None:
    rows = {length: f"| {length} | " + " | ".join(map(str, costs)) + " |" for length, costs in table.items()}
    expected = [HEADER, "|---|---|---|---|---|", *(rows[length] for length in LENGTHS_LONG if length in rows)]
    written = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = written.index(HEADER) if HEADER in written else 0
    found = list(itertools.takewhile(lambda line: line.startswith("|"), written[start:]))
    assert len(found) == 2 + len(LENGTHS_LONG)
    assert found[: len(expected)] == expected, "write this:\n" + "\n".join(expected)
