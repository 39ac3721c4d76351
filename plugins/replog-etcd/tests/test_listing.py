"""Finding the words below a key without reading all that stands below them."""

import random
from typing import Any

import pytest
import trio
from etcd_servers import Store

from replog_etcd.listing import list_below
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.records import Message


class Counted:
    """The requests of a client."""

    def __init__(self, metastore: EtcdMetastore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests = 0
        self.keys = 0
        call = metastore._gateway.call

        async def counting(path: str, message: Message, **options: Any) -> Any:
            answer = await call(path, message, **options)
            self.requests += 1
            self.keys += len(answer.get("kvs", ()))
            return answer

        monkeypatch.setattr(metastore._gateway, "call", counting)


async def fill(metastore: EtcdMetastore, keys: list[str]) -> None:
    """Many keys at once: 100 in each transaction, which is faster than 100 calls."""
    layout = metastore._layout
    for start in range(0, len(keys), 100):
        puts = [layout.put(key, b"") for key in keys[start : start + 100]]
        await metastore._gateway.call("/v3/kv/txn", {"success": puts}, what="filling", is_change=True)


async def children(metastore: EtcdMetastore, key: str, expected: list[str]) -> Counted:
    layout, gateway = metastore._layout, metastore._gateway
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = Counted(metastore, monkeypatch)
        assert list((await list_below(gateway, layout, key)).words) == expected
    return counted


async def test_a_long_leaf_takes_few_requests(store: Store) -> None:
    words = [f"{number:04}" for number in range(3000)]
    async with store.client() as metastore:
        await fill(metastore, [f"ledgers/00/0000/{word}" for word in words])
        counted = await children(metastore, "ledgers/00/0000", words)
        assert counted.requests <= 8
        assert counted.keys == 3000
        counted = await children(metastore, "ledgers/00", ["0000"])
        assert (counted.requests, counted.keys) == (2, 8)
        counted = await children(metastore, "ledgers", ["00"])
        assert (counted.requests, counted.keys) == (2, 8)


async def test_few_words_with_many_keys_below_take_few_requests(store: Store) -> None:
    words = [f"{number:04}" for number in range(10)]
    async with store.client() as metastore:
        await fill(metastore, [f"a/{word}/{number:03}" for word in words for number in range(500)])
        counted = await children(metastore, "a", words)
        assert counted.requests <= 12
        assert counted.keys <= 1000  # of 5000


async def test_many_words_with_few_keys_below_are_all_read(store: Store) -> None:
    words = [f"{number:04}" for number in range(500)]
    async with store.client() as metastore:
        pages = [f"logs/{word}/pages/{number}" for word in words for number in range(3)]
        await fill(metastore, [*(f"logs/{word}" for word in words), *pages])
        counted = await children(metastore, "logs", words)
        assert counted.requests <= 8


async def test_words_sorting_before_the_slash_are_listed(store: Store) -> None:
    """ "a-b" and "a.b" come between "a" and "a/x": the word "a" is met twice."""
    async with store.client() as metastore:
        await fill(metastore, ["r/a", "r/a-b", "r/a-b/x", "r/a.b", "r/a/x", "r/a/y", "r/a0", "r/a0/x"])
        await children(metastore, "r", ["a", "a-b", "a.b", "a0"])
        found = await list_below(metastore._gateway, metastore._layout, "r")
        assert [word for word, record in found.words.items() if record is not None] == ["a", "a-b", "a.b", "a0"]


async def test_a_page_may_end_anywhere(store: Store) -> None:
    """Between "a" and what is below it, in particular: what comes next may be "a-b"."""
    keys = sorted(["a", "a-b", "a-b/x", "a.b", "a/x", "a/y", "a0", "b/x", "b/y", "c"])
    async with store.client() as metastore:
        for before in range(9):  # the first page has 8 keys
            root = f"r{before}"
            first = [f"{number}" for number in range(before)]
            await fill(metastore, [f"{root}/{key}" for key in first + keys])
            await children(metastore, root, [*first, "a", "a-b", "a.b", "a0", "b", "c"])


async def test_random_trees_are_listed_as_they_are(store: Store) -> None:
    entropy = random.Random(7)
    alphabet = ["a", "b", "a-", "a.", "a0", "a b", "a!", "\N{SNOWMAN}", "~", "\N{GRINNING FACE}"]
    async with store.client() as metastore:
        for tree in range(12):
            made = set()
            for _ in range(entropy.choice([3, 30, 300])):
                words = [
                    entropy.choice(alphabet) + entropy.choice(["", "x", "y", "1"]) for _ in range(entropy.randint(1, 4))
                ]
                made.add("/".join([f"tree-{tree}", *words]))
            await fill(metastore, sorted(made))
            for key in {f"tree-{tree}", *entropy.sample(sorted(made), min(5, len(made)))}:
                below = [each[len(key) + 1 :] for each in made if each.startswith(f"{key}/")]
                await children(metastore, key, sorted({each.split("/")[0] for each in below}))
                values = await metastore.values(key)
                assert sorted(values) == sorted(each for each in below if "/" not in each)


async def test_lasting_keys_are_seen_while_others_come_and_go(store: Store) -> None:
    async with store.client() as metastore:
        staying = [f"{number:03}" for number in range(0, 300, 3)]
        await fill(metastore, [f"a/{word}" for word in staying])
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(come_and_go, metastore)
                for _ in range(15):
                    assert set(await metastore.children("a")) >= set(staying)
                scope.cancel()


async def come_and_go(metastore: EtcdMetastore) -> None:
    while True:
        for number in range(1, 300, 3):
            version = await metastore.create(f"a/{number:03}", b"")
            await metastore.delete(f"a/{number:03}", version)
