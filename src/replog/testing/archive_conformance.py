"""The conformance suite of archives."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from replog.abc import Archive
from replog.testing.promises import promise

OpenArchive = Callable[[], Archive]

_CREATORS = 8
_RACES = 5
_LARGE_BYTES = (9 << 20) + 1  # more than one part of an upload
_MANY = 1_100  # more than a page of a listing, or of a deletion
_PLACE = "ledgers/0000000000000000007"
_LONG_NAME = f"{_PLACE}/{'c' * 40}/{'0' * 19}-{'9' * 19}-{'f' * 64}"


def check_archive(open_archive: OpenArchive) -> None:
    """Check an archive; raise `AssertionError` with the first promise of `replog.abc` that it breaks.

    Each call of `open_archive` opens the same store, as another process would; it is empty at first, and in the end. Needs no
    pytest, and takes some seconds."""
    one, other = open_archive(), open_archive()
    promise(isinstance(one.shown(), str) and one.shown(), "an archive says in words which one it is")
    promise(list(one.objects("")) == [], "the store that it is checked in is empty")
    _check_objects(one, other)
    _check_large(one, other)
    _check_races(open_archive)
    _check_listings(one, other)


def _check_objects(one: Archive, other: Archive) -> None:
    data = b"0123456789"
    for name in ("cookie", f"{_PLACE}/a/b", _LONG_NAME):
        promise(one.read(name, 0, 1) is None, "an object that does not exist is None")
        promise(one.put(name, [data[:4], data[4:]]) is True, "a put of a new name creates the object")
        for archive in (one, other):
            promise(archive.put(name, [b"another"]) is False, "a put of a name that exists is refused")
            promise(
                archive.read(name, 0, 100) == data, "an object that exists stays as it is; everybody reads it at once"
            )
            promise(archive.read(name, 2, 3) == b"234", "a read has the bytes of its range")
            promise(archive.read(name, 8, 100) == b"89", "a read has fewer bytes at the end of the object only")
        promise(other.read(f"{name}-not", 0, 1) is None, "a name that begins so is another object")
        other.delete([name, "absent", f"{_PLACE}/absent"])
        promise(one.read(name, 0, 1) is None, "a deleted object is gone, for everybody at once")
        promise(list(one.objects("")) == [], "a deletion deletes what exists of the names, and nothing stays of it")
        promise(other.put(name, [b"new"]) is True, "the name of a deleted object can be created")
        promise(one.read(name, 0, 100) == b"new", "it has the bytes of its creation")
        one.delete([name])
    one.delete([])


def _check_large(one: Archive, other: Archive) -> None:
    data = secrets.token_bytes(1 << 20) * (_LARGE_BYTES >> 20) + b"!"
    promise(one.put("large", [data[:-1], b"!"]) is True, "a large object is created")
    promise(one.put("large", [data]) is False, "a large object is refused if it exists")
    promise(other.read("large", 0, len(data)) == data, "a large object comes back as it was")
    start = len(data) - 1000
    promise(other.read("large", start, 1 << 20) == data[start:], "a range at the end of a large object")
    promise([each.size_bytes for each in other.objects("")] == [len(data)], "a listing says the size")
    one.delete(["large"])


def _check_races(open_archive: OpenArchive) -> None:
    for race in range(_RACES):
        name = f"{_PLACE}/race/{race}"
        contents = [b"%d" % number * (1 << 16) for number in range(_CREATORS)]
        with ThreadPoolExecutor(_CREATORS) as threads:
            created = list(threads.map(lambda data, name=name: open_archive().put(name, [data]), contents))
        promise(created.count(True) == 1, "of several puts of a name at once one creates the object")
        read = open_archive().read(name, 0, 1 << 20)
        promise(read == contents[created.index(True)], "the object has the bytes of the put that created it")
        open_archive().delete([name])


def _check_listings(one: Archive, other: Archive) -> None:
    names = [f"{_PLACE}/copy/{number:05d}" for number in range(_MANY)]
    others = ["cookie", "ledgers/0000000000000000008/copy/1", "ledgers-not/1"]
    with ThreadPoolExecutor(_CREATORS) as threads:
        promise(
            all(threads.map(lambda name: one.put(name, [name.encode()]), [*names, *others])), "each name is created"
        )
    listed = list(other.objects(f"{_PLACE}/"))
    promise(
        sorted(each.name for each in listed) == names, "a listing has each object below the prefix once, and no other"
    )
    promise(all(each.size_bytes == len(each.name) for each in listed), "a listing says the size of each object")
    times_s = [each.modified_at_s for each in listed]
    promise(0 < min(times_s) <= max(times_s) < min(times_s) + 3600, "a listing says when each was written, in s")
    promise(sorted(each.name for each in one.objects("ledgers/")) == [*names, others[1]], "a prefix ends at a slash")
    promise(sorted(each.name for each in one.objects("")) == sorted([*names, *others]), "no prefix lists all")
    promise(list(one.objects("none/")) == [], "a prefix without objects has an empty listing")
    one.delete([*names, *others])
    promise(list(other.objects("")) == [], "many are deleted at once")
