"""The pages of a data file, read without LMDB: whether its trees are sound, and what can still be read of them.

LMDB follows its pages blindly: none has a checksum. A damaged page causes an error at best; it may end the process, or
lead a search past the end. So before a file is mapped, its trees are walked here, with plain reads: the pages next to the roots,
or all of them if anything suggests damage. A deviation is
a *fault*: a page of another kind or number, a key out of order or out of its branch, a node outside of its page, counts
that differ from those of the meta page, a page that is both used and free.

A page has a head of 16 bytes, then offsets (u16) of its nodes, which stand at its end. A node has a head of 8 bytes: size or
child, flags or the rest of the child's number, size of the key; then the key, and in a leaf the value, or the number of
the first of the overflow pages that hold it.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator

import attrs

from replog.runtime.lmdb_file import (
    BRANCH,
    LEAF,
    NO_PAGE,
    OVERFLOW,
    PAGE_HEAD,
    DataFileDamagedError,
    Meta,
    Tree,
    read_head,
    read_metas,
)

PAGES_CHECKED = 1_000  # of a metastore, at each opening: some 50 us each

_NODE = struct.Struct("=HHHH")
_PAGE_NUMBER = struct.Struct("=Q")
_OVERFLOW_HEAD = struct.Struct("=QHHI")
_IS_LARGE = 1  # of a node: its value is in overflow pages
_KEY_BYTES_MAX = 511
_FAULTS_MAX = 20


class _FaultError(Exception):
    """The fault of one page."""


@attrs.frozen
class _Child:
    """A page that must be there, and the keys that it may hold: from `low` on, and below `high` unless that is None."""

    page: int
    low: bytes
    high: bytes | None


@attrs.define
class _Counts:
    branch_pages: int = 0
    leaf_pages: int = 0
    overflow_pages: int = 0
    entries: int = 0


class Pages:
    """A walk through both trees of one root. `faults` says, with offsets, what is damaged; what is below that is not read.
    `damaged` are the keys of small values that are not sound by their own checksums, as `check` found them."""

    def __init__(
        self, fd: int, meta: Meta, is_sound: Callable[[bytes, bytes], bool] = lambda _key, _value: True
    ) -> None:
        self.faults: list[str] = []
        self.damaged: list[bytes] = []
        self._fd = fd
        self._meta = meta
        self._page_bytes = meta.page_bytes
        self._file_bytes = os.fstat(fd).st_size  # what a state needs was written before its meta page
        self._is_sound = is_sound
        self._used: set[int] = set()

    def check(self, pages_max: int | None = None) -> None:
        """Walks both trees, or so many pages of the main one, those next to the root first. Adds to `faults`."""
        is_whole = self._walk_main(pages_max)
        # Free pages are compared with those in use, and only a whole walk without faults knows all of these.
        if is_whole and not self.faults:
            self._check_free()

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all sound pages, in the order of the keys. Adds to `faults`."""
        for child in self._leaves(self._meta.main, _Counts()):
            try:
                nodes = self._leaf(child)
            except _FaultError as error:
                self._fault(child.page, error)
                continue
            for key, value, large in nodes:
                if large is None:
                    yield key, value
                    continue
                try:
                    yield key, self._large(*large)
                except _FaultError as error:
                    self._fault(large[0], error)

    def _walk_main(self, pages_max: int | None) -> bool:
        counts = _Counts()
        tree = self._meta.main
        for child in self._leaves(tree, counts):
            if pages_max is not None and counts.leaf_pages + counts.branch_pages >= pages_max:
                return False
            counts.leaf_pages += 1
            try:
                nodes = self._leaf(child)
                for key, value, large in nodes:
                    if large is not None:
                        counts.overflow_pages += self._check_large(*large)
                    elif not self._is_sound(key, value):
                        self.damaged.append(key)
            except _FaultError as error:
                self._fault(child.page, error)
                continue
            counts.entries += len(nodes)
        self._compare(tree, counts)
        return True

    def _compare(self, tree: Tree, counts: _Counts) -> None:
        found = (counts.branch_pages, counts.leaf_pages, counts.overflow_pages, counts.entries)
        expected = (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        # A fault hides the pages below it, so counts would differ for that reason alone.
        if not self.faults and found != expected:
            words = f"its tree has {found}, and the meta page says {expected} (branch, leaf, overflow pages, entries)"
            self._fault(self._meta.page, _FaultError(words))

    def _check_free(self) -> None:
        """Pages that are free and used would be written over."""
        for child in self._leaves(self._meta.free, _Counts(), are_numbers=True):
            try:
                for _, value, large in self._leaf(child, are_numbers=True):
                    content = value if large is None else self._large(*large)
                    self._check_free_pages(content)
            except _FaultError as error:
                self._fault(child.page, error)

    def _check_free_pages(self, content: bytes) -> None:
        numbers = struct.unpack(f"={len(content) // 8}Q", content[: len(content) // 8 * 8])
        if not numbers or numbers[0] > len(numbers) - 1:
            raise _FaultError("its list of free pages is cut")
        for number in numbers[1 : numbers[0] + 1]:
            if number in self._used or not 2 <= number <= self._meta.last_page:
                raise _FaultError(f"page {number} is free, and used or out of the file")

    # -- trees ----------------------------------------------------------------------------------------------------

    def _leaves(self, tree: Tree, counts: _Counts, *, are_numbers: bool = False) -> Iterator[_Child]:
        """The leaves of a tree, level by level, so that what is next to the root is looked at first."""
        if tree.root == NO_PAGE:
            return
        # All of a level is in memory: branches are few, some hundred for a million pages.
        level = [_Child(tree.root, b"", None)]
        for _ in range(tree.depth - 1):
            following: list[_Child] = []
            for child in level:
                try:
                    following += self._branch(child, are_numbers=are_numbers)
                    counts.branch_pages += 1
                except _FaultError as error:
                    self._fault(child.page, error)
            level = following
        yield from level

    def _branch(self, child: _Child, *, are_numbers: bool) -> list[_Child]:
        data, offsets = self._page(child.page, BRANCH)
        if len(offsets) < 2:
            raise _FaultError("it is a branch with one child")
        keys: list[bytes] = []
        pages: list[int] = []
        for position, offset in enumerate(offsets):
            low, middle, high, key_bytes = _NODE.unpack_from(data, offset)
            if offset + _NODE.size + key_bytes > len(data):
                raise _FaultError("one of its nodes is out of the page")
            # The first key of a branch is not stored: it is that of the branch itself.
            key = data[offset + _NODE.size : offset + _NODE.size + key_bytes] if position else child.low
            keys.append(key)
            pages.append(low | middle << 16 | high << 32)
        if not are_numbers:
            self._check_order(keys, child)
        ends = [*keys[1:], child.high]
        return [_Child(page, low, high) for page, low, high in zip(pages, keys, ends, strict=True)]

    def _leaf(self, child: _Child, *, are_numbers: bool = False) -> list[tuple[bytes, bytes, tuple[int, int] | None]]:
        """Key, value, and for a value in overflow pages their first and its size."""
        data, offsets = self._page(child.page, LEAF)
        found: list[tuple[bytes, bytes, tuple[int, int] | None]] = []
        for offset in offsets:
            low, high, flags, key_bytes = _NODE.unpack_from(data, offset)
            size = low | high << 16
            start = offset + _NODE.size + key_bytes
            end = start + (_PAGE_NUMBER.size if flags == _IS_LARGE else size)
            if flags not in (0, _IS_LARGE) or not 0 < key_bytes <= _KEY_BYTES_MAX or end > len(data):
                raise _FaultError("one of its nodes is out of the page, or of another kind")
            key = data[offset + _NODE.size : start]
            if flags == _IS_LARGE:
                found.append((key, b"", (_PAGE_NUMBER.unpack_from(data, start)[0], size)))
            else:
                found.append((key, data[start:end], None))
        if not are_numbers:
            self._check_order([key for key, _, _ in found], child)
        return found

    def _check_order(self, keys: list[bytes], child: _Child) -> None:
        if not keys:
            raise _FaultError("it is empty")
        if any(first >= second for first, second in itertools.pairwise(keys)):
            raise _FaultError("its keys are out of order")
        if keys[0] < child.low or (child.high is not None and keys[-1] >= child.high):
            raise _FaultError("its keys are not of this branch")

    def _page(self, page: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        """A page of a tree and the offsets of its nodes."""
        data = self._read(page, 1)
        number, _, flags, lower, upper = PAGE_HEAD.unpack_from(data)
        if number != page or flags != kind:
            raise _FaultError(f"page {number} of kind {flags} is there, and a {_KINDS[kind]} was expected")
        if not PAGE_HEAD.size <= lower <= upper <= len(data) or lower % 2:
            raise _FaultError("its head makes no sense")
        count = (lower - PAGE_HEAD.size) // 2
        offsets = struct.unpack_from(f"={count}H", data, PAGE_HEAD.size)
        if any(not upper <= offset <= len(data) - _NODE.size for offset in offsets):
            raise _FaultError("one of its nodes is out of the page")
        return data, offsets

    # -- large values ---------------------------------------------------------------------------------------------

    def _check_large(self, page: int, size: int) -> int:
        """How many pages the value has: LMDB may leave it more than it needs."""
        needed = (PAGE_HEAD.size + size - 1) // self._page_bytes + 1
        try:
            head = os.pread(self._fd, _OVERFLOW_HEAD.size, page * self._page_bytes)
        except (OSError, OverflowError) as error:
            raise _FaultError(str(error)) from error
        found: tuple[int, ...] = _OVERFLOW_HEAD.unpack(head.ljust(_OVERFLOW_HEAD.size, b"\0"))
        number, _, flags, pages = found
        if (page + needed) * self._page_bytes > self._file_bytes:
            raise _FaultError(
                f"a value of {size} bytes should be at page {page}, and the file ends at {self._file_bytes}"
            )
        if (number, flags) != (page, OVERFLOW) or pages < needed or page + pages > self._meta.last_page + 1:
            words = f"{pages} pages of kind {flags} with the number {number}"
            raise _FaultError(f"a value of {size} bytes should be at page {page}, and {words} are there")
        self._use(page, pages)
        return pages

    def _large(self, page: int, size: int) -> bytes:
        pages = self._check_large(page, size)
        return self._read_pages(page, pages)[PAGE_HEAD.size : PAGE_HEAD.size + size]

    def _read(self, page: int, pages: int) -> bytes:
        if not 2 <= page <= self._meta.last_page + 1 - pages:
            raise _FaultError(f"it is out of the file, which has {self._meta.last_page + 1} pages")
        self._use(page, pages)
        return self._read_pages(page, pages)

    def _read_pages(self, page: int, pages: int) -> bytes:
        try:
            data = os.pread(self._fd, pages * self._page_bytes, page * self._page_bytes)
        except OSError as error:
            raise _FaultError(str(error)) from error
        if len(data) < pages * self._page_bytes:
            raise _FaultError("the file ends before it")
        return data

    def _use(self, page: int, pages: int) -> None:
        numbers = range(page, page + pages)
        if not self._used.isdisjoint(numbers):
            raise _FaultError("it is used twice")
        self._used.update(numbers)

    def _fault(self, page: int, error: _FaultError) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(f"page {page}, at {page * self._page_bytes}: {error}")


_KINDS = {BRANCH: "branch", LEAF: "leaf"}


def check_pages(path: str, pages_max: int) -> None:
    """Raises `DataFileDamagedError` if one of so many pages next to the root is damaged, OSError."""
    with open(path, "rb") as file:
        head = read_head(file.fileno())
        pages = Pages(file.fileno(), max(read_metas(head), key=lambda meta: meta.txn_id))
        pages.check(pages_max)
        # A process that commits meanwhile may write over pages of the state before. It has checked the file itself.
        if pages.faults and read_head(file.fileno()) == head:
            raise DataFileDamagedError(pages.faults[0])
