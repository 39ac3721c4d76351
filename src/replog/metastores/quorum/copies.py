"""Copies of the state, in pages: a state of a million keys is a gigabyte, and it is in memory once at either end.

    page   how many sizes follow (u32), of each row the sizes of its key and its value (u32, u32), then keys and values in turn
    PAGE   the copy's number (u64), the page's number (u32), the page
    COPY   the copy's number (u64), how many pages there were (u32), the message that they belong to

The latter two are payloads of messages between members. The sizes stand together so that one call reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import attrs

from replog.errors import RemoteProtocolError

_PAGE_BYTES = 1 << 20  # about, unless one row has more
_COUNT = struct.Struct(">I")
_PART = struct.Struct(">QI")


@attrs.frozen(eq=False)
class StateCopy:
    """All rows of one moment, ascending."""

    pages: Sequence[bytes] = ()

    @staticmethod
    def of(rows: Iterable[tuple[bytes, bytes]]) -> StateCopy:
        """Packs rows, which ascend."""
        return StateCopy(tuple(_packed(rows)))

    @property
    def size_bytes(self) -> int:
        """Of all pages."""
        return sum(map(len, self.pages))

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The rows, each cut when it is reached."""
        for page in self.pages:
            sizes, at = _sizes(page)
            for row_bytes, value_bytes in zip(sizes[::2], sizes[1::2], strict=True):
                middle = at + row_bytes
                end = middle + value_bytes
                yield page[at:middle], page[middle:end]
                at = end


def page_payload(number: int, place: int, page: bytes) -> bytes:
    """The payload of a PAGE."""
    return _PART.pack(number, place) + page


def copy_payload(number: int, page_count: int, message: bytes) -> bytes:
    """The payload of a COPY."""
    return _PART.pack(number, page_count) + message


class CopyInParts:
    """The pages of one copy, as they arrive. Pages that are lost or late make it worthless: `message` finds that out."""

    def __init__(self) -> None:
        self._number = -1
        self._pages: list[bytes] = []

    def page(self, payload: bytes) -> None:
        """Takes a page. Raises `RemoteProtocolError`."""
        number, place = _part(payload)
        if place == 0:
            self._number, self._pages = number, []
        if (number, place) != (self._number, len(self._pages)):
            self._number, self._pages = -1, []
            return
        page = payload[_PART.size :]
        _check(page)
        self._pages.append(page)

    def message(self, payload: bytes) -> tuple[bytes, StateCopy] | None:
        """The message of a COPY, and its state; None if pages are missing. Raises `RemoteProtocolError`."""
        number, count = _part(payload)
        is_whole = not count or (number, count) == (self._number, len(self._pages))
        state = StateCopy(self._pages if count else ())
        self._number, self._pages = -1, []
        return (payload[_PART.size :], state) if is_whole else None


def _packed(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    sizes: list[int] = []
    pieces: list[bytes] = []
    size_bytes = 0
    for row, value in rows:
        sizes += (len(row), len(value))
        pieces += (row, value)
        size_bytes += len(row) + len(value)
        if size_bytes >= _PAGE_BYTES:
            yield _page(sizes, pieces)
            sizes, pieces, size_bytes = [], [], 0
    if pieces:
        yield _page(sizes, pieces)


def _page(sizes: Sequence[int], pieces: Sequence[bytes]) -> bytes:
    return b"".join((struct.pack(f">{1 + len(sizes)}I", len(sizes), *sizes), *pieces))


def _sizes(page: bytes) -> tuple[tuple[int, ...], int]:
    """The sizes of all keys and values, and where the first of them begins."""
    (count,) = _COUNT.unpack_from(page)
    return struct.unpack_from(f">{count}I", page, _COUNT.size), _COUNT.size * (1 + count)


def _check(page: bytes) -> None:
    try:
        sizes, begin = _sizes(page)
    except struct.error as error:
        raise RemoteProtocolError(f"a page of a copy ends within its sizes: {error}") from error
    if len(sizes) % 2 or begin + sum(sizes) != len(page):
        raise RemoteProtocolError(
            f"a page of a copy has {len(page)} bytes, and its sizes say {begin + sum(sizes)} for {len(sizes)} keys and values"
        )


def _part(payload: bytes) -> tuple[int, int]:
    try:
        number, count = _PART.unpack_from(payload)
    except struct.error as error:
        raise RemoteProtocolError(f"a part of a copy of {len(payload)} bytes") from error
    return number, count
