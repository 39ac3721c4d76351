"""Listing the keys below a key: children and values."""

from __future__ import annotations

import trio

from replog.abc import Metastore
from replog.testing.metastore_conformance.bench import Bench, until_listed
from replog.testing.promises import promise, soon

# What a store might confuse: by case or order, as patterns of its query language, as the beginning of another word, or
# through its own escapes.
_WORDS = [
    "b",
    "a",
    "a-b",
    "a.b",
    "a0",
    "B",
    "00",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "a%2Fb",
    "a_b",
    "axb",
    "a%",
    "*",
    "a b",
]
_DELETED = "a deleted key is not a child, except for a short while"
_MANY = 130


async def check_children(bench: Bench) -> None:
    """Children are the words right below a key, and no others."""
    root = bench.root
    promise(await bench.one.children(root) == [], "children of a key without any, existing or not, are []")
    for word in _WORDS:
        await bench.one.create(f"{root}/{word}", b"")
    await bench.one.create(f"{root}/a/x/y", b"")
    await bench.one.create(f"{root}/a/z", b"")
    for client in bench.clients:
        found = await client.children(root)
        promise(found == sorted(_WORDS), f"children are the words below a key, each once, sorted; got {found}")
        promise(await client.children(f"{root}/a") == ["x", "z"], "a key may have both a value and children")
        promise(await client.children(f"{root}/a/x") == ["y"], "a key that does not exist may have children")
    promise((await bench.one.get(f"{root}/a")).value == b"", "a key may have both a value and children")
    await _check_strangers(bench)
    await bench.one.delete(f"{root}/a/x/y")
    with soon(_DELETED):
        await until_listed(bench.other, f"{root}/a", ["z"], ["x"])
        await until_listed(bench.other, f"{root}/a/x", [], ["y"])
    await bench.one.delete(f"{root}/a")
    promise("a" in await bench.other.children(root), "a key that was deleted is a word as long as it has children")
    promise(await bench.other.children(f"{root}/a") == ["z"], "a deletion takes nothing below it along")
    await bench.one.delete(f"{root}/a/z")
    words = [word for word in _WORDS if word != "a"]
    with soon(_DELETED):
        await until_listed(bench.other, root, words, ["a"])
    for word in words:
        await bench.one.delete(f"{root}/{word}")
    with soon(_DELETED):
        await until_listed(bench.other, root, [], _WORDS)


async def _check_strangers(bench: Bench) -> None:
    """Keys that only begin with the same letters, or look similar, are not below."""
    root, contract = bench.root, "what begins with the same letters, or is like it, is not below a key"
    await bench.one.create(f"{root}/axb/below", b"")
    for word in ("b", "B", "a_b", "a%", "*", "a-b"):
        for client in bench.clients:
            promise(await client.children(f"{root}/{word}") == [], f"{contract}: {word!r}")
            promise(await client.values(f"{root}/{word}") == {}, f"{contract}: {word!r}")
    await bench.one.delete(f"{root}/axb/below")


async def check_values(bench: Bench) -> None:
    """`values` returns children with the values of their own keys."""
    root, contract = bench.root, "values are those of the keys right below a key, by its last word, with versions"
    promise(await bench.one.values(root) == {}, "values of a key with nothing below it are {}")
    await bench.one.create(root, b"not below")
    await bench.one.create(f"{root}/empty", b"")
    await bench.one.create(f"{root}/only/below", b"deep")
    version = await bench.one.create(f"{root}/both", b"1")
    await bench.one.create(f"{root}/both/below", b"deep")
    await bench.other.put(f"{root}/both", b"2", version)
    for client in bench.clients:
        expected = {word: await client.get(f"{root}/{word}") for word in ("both", "empty")}
        found = await client.values(root)
        promise(found == expected, f"{contract}; expected {sorted(expected)}, got {sorted(found)}")
        promise(
            list((await client.values(f"{root}/both")).values()) == [await client.get(f"{root}/both/below")], contract
        )
    for word in ("empty", "only/below", "both/below", "both"):
        await bench.one.delete(f"{root}/{word}")
        promise(word not in await bench.other.values(root), "what was deleted has no value")
    await bench.one.delete(root)


async def check_pages(bench: Bench) -> None:
    """`values_page` returns what `values` does, in parts."""
    root, contract = bench.root, "pages have the values right below a key, each once, in the order of their words"
    for word in _WORDS:
        await bench.one.create(f"{root}/{word}", word.encode())
    for key in ("a/x", "a0/y", "between/z"):
        await bench.one.create(f"{root}/{key}", b"deep")
    expected = await bench.other.values(root)
    for count_max in (1, 2, 5, len(_WORDS), 1000):
        found: list[str] = []
        first: str | None = ""
        while first is not None:
            page = await bench.one.values_page(root, first, count_max)
            promise(len(page.values) <= count_max, f"a page has {count_max} values at most; got {len(page.values)}")
            promise(all(expected[word] == each for word, each in page.values.items()), contract)
            promise(page.next_first is None or page.next_first > first, "the next page begins behind this one")
            found += page.values
            first = page.next_first
        promise(found == sorted(_WORDS), f"{contract}; got {found} by {count_max}")
    page = await bench.other.values_page(root, "a-c", 2)
    promise(
        list(page.values) == ["a.b", "a0"],
        f"a page begins with its first word, or behind it; got {sorted(page.values)}",
    )
    promise(
        (await bench.one.values_page(f"{root}/b", "", 9)).values == {}, "a key with nothing below it has an empty page"
    )
    for key in (*_WORDS, "a/x", "a0/y", "between/z"):
        await bench.one.delete(f"{root}/{key}")


async def check_many_children(bench: Bench) -> None:
    """Children and values of more keys than a store may return at once."""
    root = bench.root
    numbers = [f"{number:04}" for number in range(_MANY)]

    async def each(change: str, client: Metastore, words: list[str]) -> None:
        for word in words:
            key = f"{root}/many/{word}"
            await (client.create(key, word.encode()) if change == "create" else client.delete(key))

    async def all_at_once(change: str) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(10):
                nursery.start_soon(each, change, bench.clients[task % 2], numbers[task::10])

    await all_at_once("create")
    promise(await bench.one.children(f"{root}/many") == numbers, f"children are all of them; there are {_MANY}")
    found = {word: each.value for word, each in (await bench.other.values(f"{root}/many")).items()}
    promise(found == {word: word.encode() for word in numbers}, f"values are all of them; there are {_MANY}")
    await all_at_once("delete")
    with soon(_DELETED):
        await until_listed(bench.other, f"{root}/many", [], numbers)


CHECKS = (check_children, check_values, check_pages, check_many_children)
