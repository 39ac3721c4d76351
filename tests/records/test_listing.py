"""Listing ledgers and logs: what exists is found in order, and a key that does not belong there is named."""

from __future__ import annotations

import attrs
import pytest

from replog.abc import Metastore
from replog.errors import MetastoreCorruptError, MetastoreError
from replog.metastores.memory import MemoryMetastore
from replog.records.encoding import encode
from replog.records.ledgers import ledger_id_pages, list_ledger_ids
from replog.records.logs import (
    list_log_names,
    list_log_pages,
)
from replog.records.paths import (
    LEDGER_ID_MAX,
    ledger_key_path,
    ledger_word,
    ledgers_by_leaf,
    log_key_path,
    log_page_key_path,
)
from replog.testing import Fault, FaultyMetastore
from tests.records.samples import DELETED_LOG, LOG, PAGE

IDS = [0, 1, 9_999, 10_000, 12_345_678, 10**10 - 1, 10**10, 10**10 + 1, 10**15, LEDGER_ID_MAX]


async def create_ledgers(ids: list[int]) -> MemoryMetastore:
    metastore = MemoryMetastore()
    for ledger_id in ids:
        await metastore.create(ledger_key_path(ledger_id), b"")
    return metastore


async def test_ledgers_are_listed_in_ascending_order() -> None:
    metastore = await create_ledgers(IDS[::-1])
    assert await list_ledger_ids(metastore) == IDS
    assert await list_ledger_ids(MemoryMetastore()) == []


async def pages(metastore: Metastore) -> list[list[int]]:
    return [page async for page in ledger_id_pages(metastore)]


async def test_pages_of_ids_are_directories() -> None:
    found = await pages(await create_ledgers(IDS))
    assert found[0] == [0, 1, 9_999]
    assert found[-3:] == [[10**10, 10**10 + 1], [10**15], [LEDGER_ID_MAX]]


async def test_listing_asks_once_for_each_key_with_children() -> None:
    ids = [*range(0, 40_000, 100), 123_456_789, 10**12]
    metastore = FaultyMetastore(await create_ledgers(ids))
    assert await list_ledger_ids(metastore) == ids
    # The leaves, what stands above them up to both roots, and nothing twice.
    asked = [call.key for call in metastore.calls]
    assert len(asked) == len(set(asked)) == len(ledger_leaves(ids)) + (1 + 2) + (1 + 3)


@pytest.mark.parametrize(
    "stranger",
    [
        "ledgers/00/0000/stranger",
        "ledgers/00/0000/1",
        "ledgers/00/0000/00001",
        "ledgers/00/0000/\N{ARABIC-INDIC DIGIT ONE}000",
        "ledgers/00/0000/-001",
        "long-ledgers/922/3372/0368/5477/5808",
        "long-ledgers/922/3372/0368/5477/9999",
    ],
)
@pytest.mark.parametrize("has_neighbours", [False, True])
async def test_listing_names_a_foreign_key(stranger: str, has_neighbours: bool) -> None:
    metastore = await create_ledgers([0, 2, LEDGER_ID_MAX - 1, LEDGER_ID_MAX] if has_neighbours else [])
    await metastore.create(stranger, b"")
    with pytest.raises(MetastoreCorruptError, match=stranger):
        await list_ledger_ids(metastore)


def ledger_leaves(ids: list[int]) -> set[str]:
    return {ledger_key_path(each).rpartition("/")[0] for each in ids}


def test_ids_are_grouped_by_the_keys_above_theirs() -> None:
    grouped = dict(ledgers_by_leaf(IDS))
    assert list(grouped) == sorted(ledger_leaves(IDS), key=lambda leaf: ("long" in leaf, leaf))
    for leaf, ids in grouped.items():
        assert [f"{leaf}/{ledger_word(each)}" for each in ids] == [ledger_key_path(each) for each in ids]
    assert [each for ids in grouped.values() for each in ids] == IDS
    assert list(ledgers_by_leaf([])) == []


async def test_listing_raises_when_metastore_fails_or_key_is_unknown() -> None:
    """B6: garbage collection must not take an error for an absence."""
    metastore = await create_ledgers(IDS)
    faulty = FaultyMetastore(metastore)
    faulty.fail_next("children", Fault.UNAVAILABLE, under="ledgers/99/")
    with pytest.raises(MetastoreError, match="on purpose"):
        await list_ledger_ids(faulty)
    assert faulty.planned() == 0
    await metastore.create("ledgers/00/0000/stranger", b"")
    with pytest.raises(MetastoreCorruptError, match="ledgers/00/0000/stranger"):
        await list_ledger_ids(metastore)


async def test_logs_are_listed_by_name() -> None:
    metastore = MemoryMetastore()
    for name in ("b/c", "a", "..", "Z", ".d"):
        await metastore.create(log_key_path(name), encode(attrs.evolve(LOG, name=name)))
        await metastore.create(log_page_key_path(name, 1), encode(attrs.evolve(PAGE, log_name=name)))
    await metastore.create(log_key_path("deleted"), encode(attrs.evolve(DELETED_LOG, name="deleted")))
    await metastore.create(log_key_path("damaged"), b"{")
    assert await list_log_names(metastore) == ["..", ".d", "Z", "a", "b/c", "damaged"]
    assert await list_log_names(metastore, "b") == ["b/c"]
    assert await list_log_names(metastore, after="Z") == ["a", "b/c", "damaged"]
    # Pages are parts of the whole, of any size: deleted logs take no place in them.
    for limit in range(1, 7):
        names, page = [], [""]
        while page:
            page = await list_log_names(metastore, after=page[-1], limit=limit)
            assert len(page) <= limit
            names += page
        assert names == ["..", ".d", "Z", "a", "b/c", "damaged"]
    assert await list_log_names(metastore, "a", limit=5) == ["a"]
    assert await list_log_names(metastore, ".") == ["..", ".d"]
    assert await list_log_names(metastore, "..", ".") == [".."]
    assert await list_log_names(metastore, "b/", after="a", limit=1) == ["b/c"]
    assert await list_log_names(metastore, "\ud800") == []


async def test_page_of_few_among_many_logs_reads_few() -> None:
    """Each page read all logs: a list of a million took an hour, and `quorum:` refused an answer of more than 32 MiB."""
    metastore = FaultyMetastore(MemoryMetastore())
    for number in range(2500):
        key = log_key_path(f"log/{number:04}")
        await metastore.create(key, encode(attrs.evolve(LOG, name=f"log/{number:04}")))
    metastore.calls.clear()
    assert await list_log_names(metastore, after="log/1999", limit=2) == ["log/2000", "log/2001"]
    assert [(call.operation, call.key) for call in metastore.calls] == [("values_page", "logs")]
    assert len(await list_log_names(metastore)) == 2500
    assert len(await list_log_names(metastore, "log/1")) == 1000


async def test_log_pages_are_listed_by_number_and_other_keys_named() -> None:
    metastore = MemoryMetastore()
    assert await list_log_pages(metastore, "a/pages/1") == []
    for number in (10, 9, 0, 123):
        await metastore.create(log_page_key_path("a/pages/1", number), b"")
    assert await list_log_pages(metastore, "a/pages/1") == [0, 9, 10, 123]
    await metastore.create(log_page_key_path("b", 1), b"")
    await metastore.create("logs/b/pages/01", b"")
    with pytest.raises(MetastoreCorruptError, match="'logs/b/pages/01'"):
        await list_log_pages(metastore, "b")
