"""The data file of an LMDB environment, before LMDB maps it: whether it can be mapped, and how it is made.

Rules:
- LMDB believes what its file says, and a page that is not in the file kills the process (SIGBUS). So the file's size,
  its two meta pages and the roots that they name are checked before it is mapped.
- A new file is made under another name, synced, and renamed when it is whole. The process that makes a directory also
  leaves a *mark* there when the file has its name: without it, a small torn file was never finished, and holds nothing;
  with it, a torn file is damaged. So a damaged file is never taken for a new one.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import attrs
import lmdb

from replog.runtime.platform import allocate, sync_all, sync_directory

DATA_FILE = "data.mdb"
NEW_FILE = "data.mdb.new"
READERS_FILE = "lock.mdb"
READERS_MAX = 1024
META_PAGES = 2
NO_PAGE = (1 << 64) - 1

_MAGIC, _FORMAT = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, _META = 1, 2, 4, 8
PAGE_HEAD = struct.Struct("=QHHHH")  # number, padding, flags, lower and upper end of the free space
_TREE = "IHHQQQQQ"  # page size (of the first tree only), flags, depth, branch, leaf and overflow pages, entries, root
_META_BODY = struct.Struct(f"=IIQQ{_TREE}{_TREE}QQ")  # magic, format, address, map size, trees, last page, transaction
META_BYTES = PAGE_HEAD.size + _META_BODY.size
_LMDB_PAGE_BYTES_MAX = 1 << 15
_PAGE_BYTES = {1 << each for each in range(9, 17)}
UNWRITTEN_BYTES_MAX = 1 << 20  # LMDB does not write pages that it freed at once, not even at the end of its file
_HALF_MADE_PAGES_MAX = 8  # a new file with its first record has five
_TRANSACTION_BYTES = 16 << 20
_LOOKS_MAX = 10  # other processes may write to the file meanwhile
_READERS_BYTES = READERS_MAX * 64 + 4096  # a reader has a cache line; LMDB's own head has less than a page
_BLOCK_BYTES = 512  # of `st_blocks`
_ALONE_S = 10.0
_ALONE_POLL_S = 0.005


class DataFileDamagedError(Exception):
    """LMDB must not map this file. The text says the offset and why.

    For the modules that use this one: they turn it into an error of replog."""


@attrs.frozen
class Tree:
    """A meta page's description of one of its two trees."""

    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int  # page number, or `NO_PAGE`


@attrs.frozen
class Meta:
    """The contents of a meta page."""

    page: int  # 0 or 1
    page_bytes: int
    map_bytes: int
    free: Tree  # the numbers of pages to be used again
    main: Tree
    last_page: int
    txn_id: int

    @property
    def used_bytes(self) -> int:
        """The size that the file had to grow to; it may be a little smaller."""
        return (self.last_page + 1) * self.page_bytes


def check_data_file(path: str) -> Meta:
    """The meta page that LMDB will use. Raises `DataFileDamagedError`, OSError."""
    before = b""
    for _ in range(_LOOKS_MAX):
        with open(path, "rb") as file:
            head = read_head(file.fileno())
            try:
                # Read twice before it counts as damage: another process may have been writing its meta page at the first
                # look.
                return _check(file.fileno(), head)
            except DataFileDamagedError:
                if head == before:
                    raise
                before = head  # a process that wrote to it meanwhile?
    raise DataFileDamagedError("at 0: its meta pages change all the time")


def _check(fd: int, head: bytes) -> Meta:
    # Only the newest page is judged by its trees. When a write of a meta page fails, LMDB gives that page the number of the
    # transaction before, and leaves the roots of the failed one in it: roots that may lie behind its own last page. LMDB never
    # follows them, and writes over them at its next commit.
    newest = max(read_metas(head), key=lambda meta: meta.txn_id)
    size_bytes = os.fstat(fd).st_size
    if size_bytes + UNWRITTEN_BYTES_MAX < newest.used_bytes:
        raise DataFileDamagedError(f"at {size_bytes}: it ends there, and had {newest.used_bytes} bytes")
    check_roots(fd, newest)
    return newest


def read_head(fd: int) -> bytes:
    """The bytes that hold both meta pages, for any page size. Raises OSError."""
    return os.pread(fd, META_PAGES * max(_PAGE_BYTES), 0)


def read_metas(head: bytes) -> tuple[Meta, Meta]:
    """Both meta pages at the beginning of a file. Raises `DataFileDamagedError`."""
    first = read_meta(head, 0, 0)
    return first, read_meta(head, 1, first.page_bytes)


def read_metas_apart(head: bytes) -> list[Meta | DataFileDamagedError]:
    """Both meta pages, or the fault of either. LMDB makes files with the page size of the machine."""
    found: list[Meta | DataFileDamagedError] = []
    for page in range(META_PAGES):
        try:
            found.append(read_meta(head, page, page * min(mmap.PAGESIZE, _LMDB_PAGE_BYTES_MAX)))
        except DataFileDamagedError as error:
            found.append(error)
    return found


def restore_meta(path: str, meta: Meta) -> None:
    """Makes the other meta page a copy of this one, durably: LMDB opens no file that has only one. Raises OSError."""
    with open(path, "r+b") as file:
        page = bytearray(os.pread(file.fileno(), meta.page_bytes, meta.page * meta.page_bytes))
        # The page's own number: LMDB takes a copy with the other page's number for damaged.
        struct.pack_into("=Q", page, 0, 1 - meta.page)
        os.pwrite(file.fileno(), page, (1 - meta.page) * meta.page_bytes)
        sync_all(file.fileno())


def read_meta(head: bytes, page: int, offset: int) -> Meta:
    """The meta page at this offset. Raises `DataFileDamagedError`."""
    if len(head) < offset + META_BYTES:
        raise DataFileDamagedError(f"at {len(head)}: it ends there, within its meta pages")
    number, _, flags, _, _ = PAGE_HEAD.unpack_from(head, offset)
    fields = _META_BODY.unpack_from(head, offset + PAGE_HEAD.size)
    magic, version, _, map_bytes, page_bytes = fields[:5]
    free, main = Tree(*fields[6:12]), Tree(*fields[14:20])
    last_page, txn_id = fields[20:]
    if number != page or flags != _META or magic != _MAGIC:
        raise DataFileDamagedError(f"at {offset}: not a meta page of LMDB")
    if version != _FORMAT:
        raise DataFileDamagedError(f"at {offset}: its LMDB format is {version}, and {_FORMAT} was expected")
    if page_bytes not in _PAGE_BYTES or (offset and page_bytes != offset):
        raise DataFileDamagedError(f"at {offset}: its page size is {page_bytes}")
    return Meta(page, page_bytes, map_bytes, free, main, last_page, txn_id)


def check_roots(fd: int, meta: Meta) -> None:
    """Raises `DataFileDamagedError` if the pages that a meta page names as roots are not pages of a tree."""
    for page in (meta.free.root, meta.main.root):
        if page == NO_PAGE:
            continue
        if not META_PAGES <= page <= meta.last_page:
            at = meta.page * meta.page_bytes
            raise DataFileDamagedError(f"at {at}: the root is page {page} of {meta.last_page + 1}")
        offset = page * meta.page_bytes
        found = os.pread(fd, PAGE_HEAD.size, offset)
        if len(found) < PAGE_HEAD.size:
            raise DataFileDamagedError(f"at {offset}: it ends before this page, the root")
        number, _, flags, lower, upper = PAGE_HEAD.unpack(found)
        if number != page or flags not in (BRANCH, LEAF) or not PAGE_HEAD.size <= lower <= upper <= meta.page_bytes:
            raise DataFileDamagedError(f"at {offset}: this is not the root that its meta page names")


# -- making ---------------------------------------------------------------------------------------------------------


def is_half_made(path: str) -> bool:
    """Whether a file without a mark is the remains of a file whose creation a crash interrupted: small, torn, and ours:
    it begins like a file of LMDB's, or with zeros. Raises OSError."""
    size_bytes = os.path.getsize(path)
    if size_bytes > _HALF_MADE_PAGES_MAX * mmap.PAGESIZE:
        return False
    try:
        check_data_file(path)
    except DataFileDamagedError:
        with open(path, "rb") as file:
            head = file.read(META_BYTES)
        whole = PAGE_HEAD.pack(0, 0, _META, 0, 0) + struct.pack("=II", _MAGIC, _FORMAT)
        return whole.startswith(head[: len(whole)].rstrip(b"\0"))
    return False


def make_data_file(directory: str, records: Iterable[tuple[bytes, bytes]], *, size_bytes: int = 0) -> None:
    """Makes the directory's data file, durably, with these records, sorted by their keys, which take so many bytes.
    Replaces the present file. Raises `lmdb.Error`, OSError: then nothing has changed."""
    new = f"{directory}/{NEW_FILE}"
    with suppress(FileNotFoundError):
        os.unlink(new)
    try:
        # Pages are seldom full, and the tree above them takes some: hence twice the bytes.
        map_bytes = 2 * size_bytes + 16 * mmap.PAGESIZE
        with lmdb.open(new, subdir=False, lock=False, map_size=map_bytes) as environment:
            left = iter(records)
            while _put_some(environment, left):
                pass
            environment.sync(True)
        with open(new, "rb") as file:
            # LMDB synced what it wrote; this is for the size of the file.
            sync_all(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise
    os.rename(new, f"{directory}/{DATA_FILE}")
    sync_directory(directory)


def _put_some(environment: lmdb.Environment, records: Iterator[tuple[bytes, bytes]]) -> bool:
    """Whether there may be more. One transaction for all would need memory for all."""
    size_bytes = 0
    with environment.begin(write=True) as transaction:
        for key, value in records:
            transaction.put(key, value, append=True)
            size_bytes += len(key) + len(value)
            if size_bytes >= _TRANSACTION_BYTES:
                return True
    return False


def make_readers_file(directory: str) -> None:
    """Gives LMDB's table of readers all its bytes on the disk. For a caller that is `alone_in_directory`, and has not
    opened it. Raises OSError.

    LMDB itself makes a file with holes and writes to it through a map: on a full disk, the first write kills the process."""
    path = f"{directory}/{READERS_FILE}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    size_bytes = _READERS_BYTES
    try:
        found = os.fstat(fd)
        size_bytes = found.st_size if _has_readers(fd) else max(found.st_size, size_bytes)
        if found.st_size < size_bytes or found.st_blocks * _BLOCK_BYTES < size_bytes:
            allocate(fd, 0, size_bytes)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} for its {size_bytes} bytes", path) from error
    finally:
        os.close(fd)


def _has_readers(fd: int) -> bool:
    """Whether a process has the environment open: by the lock that LMDB has then. The size of its table must stay."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except (BlockingIOError, PermissionError):  # POSIX allows either for "somebody else has it"
        return True
    return False


@contextmanager
def alone_in_directory(path: str) -> Iterator[None]:
    """Only one process at a time makes something in this directory. Blocks for `_ALONE_S` at most. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock_within(fd, path, time.monotonic() + _ALONE_S)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # else a child that was forked meanwhile would keep the lock
        os.close(fd)


def _lock_within(fd: int, path: str, deadline_s: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"another process has been opening it for {_ALONE_S:.0f} s: is one stopped?", path
                ) from error
            time.sleep(_ALONE_POLL_S)
        else:
            return
