"""Creating, reading, replacing and deleting keys, one call at a time."""

from __future__ import annotations

import secrets

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LocalProtocolError,
    MetastoreError,
    TransientError,
    VersionConflictError,
)
from replog.testing.metastore_conformance.bench import MISSING, Bench
from replog.testing.promises import promise, promised_error

_SEES = "a get sees every change that was answered before it began, whoever made it"
_MEANT_OTHERWISE = (0, -1)  # to etcd 0 is the version of a key that is not there, to ZooKeeper -1 is any version
_STALE = "a put that expects another version raises VersionConflictError, with key and expected, and changes nothing"
_NO_KEY = "a key that some store could not hold raises LocalProtocolError (replog.abc.check_key)"
_TOO_LARGE = "a value of more than 1 000 000 bytes raises MetastoreError, not a transient one; nothing is written"
_BAD_KEYS = ("", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "a" * 481)


async def check_create_and_get(bench: Bench) -> None:
    """Creating makes a key, and never overwrites an existing one."""
    key = f"{bench.root}/a"
    with promised_error(KeyNotFoundError, MISSING) as raised:
        await bench.one.get(key)
    promise(raised[0].key == key, MISSING)
    version = await bench.one.create(key, b"first")
    found = await bench.one.get(key)
    promise(found.value == b"first", _SEES)
    promise(found.version == version, "create returns the version that get tells")
    promise(await bench.other.get(key) == found, _SEES)
    exists = "creating a key that exists raises KeyExistsError, which has the key, and changes nothing"
    for client in bench.clients:
        with promised_error(KeyExistsError, exists) as again:
            await client.create(key, b"second")
        promise(again[0].key == key, exists)
    promise((await bench.one.get(key)) == found, exists)
    await bench.one.delete(key)


async def check_put(bench: Bench) -> None:
    """Whether a put succeeds depends on the version only, not on the value."""
    key = f"{bench.root}/a"
    for expected in (1, *_MEANT_OTHERWISE):
        with promised_error(KeyNotFoundError, MISSING) as missing:
            await bench.one.put(key, b"", expected)
        promise(missing[0].key == key, MISSING)
    first = await bench.one.create(key, b"1")
    for expected in _MEANT_OTHERWISE:
        # A store may give its first version just this number.
        if expected != first:
            await _check_conflict(bench, key, expected, b"1")
    second = await bench.one.put(key, b"2", first)
    promise(second != first, "put returns the new version, which is another one")
    promise((await bench.other.get(key)).version == second, "put returns the version that get tells")
    await _check_conflict(bench, key, first, b"2")
    third = await bench.other.put(key, b"2", second)
    promise(third != second, "a put of the same value gives a new version all the same")
    await _check_conflict(bench, key, second, b"2")
    await bench.one.put(key, b"1", third)  # what it was at first
    await _check_conflict(bench, key, first, b"1")
    await bench.one.delete(key)


async def _check_conflict(bench: Bench, key: str, expected: int, value: bytes) -> None:
    for client in bench.clients:
        with promised_error(VersionConflictError, _STALE) as conflict:
            await client.put(key, b"3", expected)
        promise((conflict[0].key, conflict[0].expected) == (key, expected), _STALE)
        promise((await client.get(key)).value == value, _STALE)


async def check_versions(bench: Bench) -> None:
    """Each change gives a version that the key never had before."""
    key = f"{bench.root}/a"
    versions = [await bench.one.create(key, b"")]
    for number in range(50):
        client = bench.clients[number % 2]
        # The values repeat: a store that makes versions of values fails here.
        versions.append(await client.put(key, b"%d" % (number % 3), versions[-1]))
    promise(len(set(versions)) == len(versions), "versions of one key never repeat while the key exists")
    await bench.one.delete(key)


async def check_delete(bench: Bench) -> None:
    """Whether a delete succeeds depends on the version only, if one is expected."""
    key = f"{bench.root}/a"
    for expected in (None, 1, *_MEANT_OTHERWISE):
        with promised_error(KeyNotFoundError, MISSING) as missing:
            await bench.one.delete(key, expected)
        promise(missing[0].key == key, MISSING)
    first = await bench.one.create(key, b"1")
    second = await bench.one.put(key, b"2", first)
    stale = "a delete with another version than expected raises VersionConflictError, with key and expected, no more"
    for client in bench.clients:
        with promised_error(VersionConflictError, stale) as conflict:
            await client.delete(key, first)
        promise((conflict[0].key, conflict[0].expected) == (key, first), stale)
    promise((await bench.one.get(key)).value == b"2", stale)
    await bench.other.delete(key, second)
    with promised_error(KeyNotFoundError, "a key that was deleted does not exist"):
        await bench.one.get(key)
    await bench.one.create(key, b"anew")
    await bench.one.delete(key, None)
    with promised_error(KeyNotFoundError, "a delete that expects no version deletes any"):
        await bench.other.get(key)


async def check_every_read_is_fresh(bench: Bench) -> None:
    """A client that has read a key before sees changes, too: this finds caches, and followers that lag."""
    key = f"{bench.root}/a"
    # Writer and reader change places: a cache in either client shows.
    for number in range(12):
        writer, reader = bench.clients[number % 2], bench.clients[1 - number % 2]
        promise(number > 0 or await reader.children(bench.root) == [], "children of a key without any are []")
        version = await writer.create(key, b"%d" % number)
        promise((await reader.get(key)).value == b"%d" % number, _SEES)
        promise(await reader.children(bench.root) == ["a"], "children are as fresh as a get")
        await writer.put(key, b"again", version)
        promise((await reader.get(key)).value == b"again", _SEES)
        await reader.delete(key)
        with promised_error(KeyNotFoundError, _SEES):
            await writer.get(key)


async def check_values_of_all_kinds(bench: Bench) -> None:
    """Values may be any bytes, up to the promised size."""
    key = f"{bench.root}/a"
    for value in (b"", bytes(range(256)) * 3, b"\0", b" \n", secrets.token_bytes(512 << 10)):
        kept = f"any {len(value)} bytes come back as they are"
        version = await bench.one.create(key, value)
        with promised_error(KeyExistsError, f"a key with a value of {len(value)} bytes exists"):
            await bench.other.create(key, b"another")
        promise((await bench.other.get(key)).value == value, kept)
        version = await bench.one.put(key, b"x", version)
        await bench.one.put(key, value, version)
        promise((await bench.other.get(key)).value == value, kept)
        await bench.one.delete(key)


async def check_limits(bench: Bench) -> None:
    """Keys that are too long are refused, and all others are stored."""
    key = f"{bench.root}/a"
    for bad in _BAD_KEYS:
        with promised_error(LocalProtocolError, f"{_NO_KEY}: {bad[:9]!r}"):
            await bench.one.create(bad, b"")
        with promised_error(LocalProtocolError, f"{_NO_KEY}: {bad[:9]!r}"):
            await bench.one.get(bad)
    version = await bench.one.create(key, b"small")
    with promised_error(MetastoreError, _TOO_LARGE) as raised:
        await bench.one.put(key, bytes(1_000_001), version)
    with promised_error(MetastoreError, _TOO_LARGE) as raised_too:
        await bench.one.create(f"{key}/b", bytes(1_000_001))
    for error in raised + raised_too:
        promise(not isinstance(error, TransientError), _TOO_LARGE)
    promise((await bench.one.get(key)).value == b"small", _TOO_LARGE)
    promise(await bench.one.children(key) == [], _TOO_LARGE)
    await bench.one.delete(key)
    # 480 characters, the most that `check_key` allows.
    longest = f"{bench.root}/" + "/".join("w" * 50 for _ in range(9))
    longest = longest[:480] if not longest[:480].endswith("/") else longest[:479] + "w"
    await bench.one.create(longest, b"far")
    promise((await bench.other.get(longest)).value == b"far", f"a key may have {len(longest)} bytes")
    await bench.one.delete(longest)


async def check_keys_are_apart(bench: Bench) -> None:
    """Keys that differ in case, in wildcards, or in Unicode normal form are different keys."""
    words = [
        "b",
        "B",
        "a_b",
        "axb",
        "a%b",
        "a*b",
        "?",
        "[b]",
        "'b'",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "e\u0301",
        "0",
        "00",
    ]
    for word in words:
        await bench.one.create(f"{bench.root}/{word}", word.encode())
    for word in words:
        found = await bench.other.get(f"{bench.root}/{word}")
        promise(found.value == word.encode(), "two keys are one only if they are equal")
    for word in words:
        await bench.one.delete(f"{bench.root}/{word}")


async def check_what_a_closed_client_wrote_stays(bench: Bench) -> None:
    """A client that is opened later finds the key."""
    key = f"{bench.root}/a"
    async with bench.open() as third:
        version = await third.create(key, b"1")
        version = await third.put(key, b"2", version)
    async with bench.open() as third:
        found = await third.get(key)
        promise((found.value, found.version) == (b"2", version), "what a client wrote stays when it is closed")
        await third.delete(key, version)
    await _check_missing(bench.one, key)


async def _check_missing(client: Metastore, key: str) -> None:
    with promised_error(KeyNotFoundError, "a key that was deleted does not exist"):
        await client.get(key)


CHECKS = (
    check_create_and_get,
    check_every_read_is_fresh,
    check_put,
    check_versions,
    check_delete,
    check_values_of_all_kinds,
    check_limits,
    check_keys_are_apart,
    check_what_a_closed_client_wrote_stays,
)
