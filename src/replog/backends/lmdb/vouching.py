"""Checks that a data file holds everything durable, before LMDB maps it, and repairs damage (B3, B8).

The durable mark says the number of the last transaction that was committed. Rules:
- A file whose newest intact meta page is of an earlier transaction has lost something: LMDB would silently show that.
- If anything suggests damage, the trees are walked wholly. Otherwise only the pages next to the root are, so few that opening
  stays quick, and more of them if the storage was not closed.
- The doubt is raised, durably, before anything is changed. Then a damaged meta page is made again from the
  other one; a damaged tree is replaced by a new file with all records that can still be read, so that LMDB never meets a
  page that would end the process.
- A file of another bookie is refused untouched.
"""

from __future__ import annotations

import os

from replog.backends.durable_mark import DurableMark
from replog.backends.lmdb.damages import salvaged
from replog.backends.lmdb.directory import Former
from replog.backends.lmdb.records import DELETED, DROPPED, FORMAT_KEY, LEDGER, DamagedError, format_text, unseal
from replog.errors import StorageIdentityError
from replog.runtime.lmdb_file import (
    META_PAGES,
    UNWRITTEN_BYTES_MAX,
    DataFileDamagedError,
    Meta,
    check_roots,
    make_data_file,
    read_head,
    read_metas_apart,
    restore_meta,
)
from replog.runtime.lmdb_pages import Pages

PAGES_MAX = 2_000  # walked at each opening: some 50 us each
PAGES_MAX_UNCLOSED = 20_000
_DAMAGED_MAX = 1_000  # records that are remembered one by one
_SEALED = DELETED + DROPPED + LEDGER


def vouch(path: str, data: str, bookie_id: str, mark: DurableMark, former: Former) -> None:
    """Checks the file, and raises the doubt if it must.

    Raises `StorageIdentityError`, `StorageFullError`, `DataFileDamagedError` if nothing of the file can be read, OSError."""
    with open(data, "rb") as file:
        meta, reasons, is_patchable = _newest(file.fileno(), data, mark, former)
        faults = _cut_off(file.fileno(), meta)
        pages = Pages(file.fileno(), meta, is_sound)
        # A whole walk of a large file takes minutes, so it needs a cause.
        has_cause = bool(reasons or faults or mark.cannot_vouch or former is Former.TORN)
        pages.check(None if has_cause else PAGES_MAX if former is Former.CLOSED else PAGES_MAX_UNCLOSED)
        faults += pages.faults
        reasons += [f"{data}: {fault}" for fault in faults]
        damaged = [f"{data}: the record {key.hex()} is damaged" for key in pages.damaged[:_DAMAGED_MAX]]
        new = [each for each in damaged if each not in mark.accounted_names]
        reasons += new
        if reasons:
            _check_identity(file.fileno(), meta, data, bookie_id)
        if reasons or mark.cannot_vouch:
            # A new data file counts transactions from the beginning.
            position = 0 if faults else meta.txn_id
            mark.raise_doubt([*mark.cannot_vouch, *reasons], is_lost=bool(reasons), position=position, names=new)
        if faults:
            kept = salvaged(bookie_id, Pages(file.fileno(), meta).records())
            make_data_file(path, kept, size_bytes=os.fstat(file.fileno()).st_size)
        elif is_patchable:
            restore_meta(data, meta)


def is_sound(key: bytes, value: bytes) -> bool:
    """Whether a mark, a series or a deleted ledger matches its checksum; others have none, or one of their own."""
    try:
        if key[0] in _SEALED:
            unseal(key, value)
    except DamagedError:
        return False
    return True


def _cut_off(fd: int, meta: Meta) -> list[str]:
    size_bytes = os.fstat(fd).st_size
    if size_bytes + UNWRITTEN_BYTES_MAX >= meta.used_bytes:
        return []
    return [f"it ends at {size_bytes}, and had {meta.used_bytes} bytes"]


def _newest(fd: int, data: str, mark: DurableMark, former: Former) -> tuple[Meta, list[str], bool]:
    """The newest intact meta page, the losses, and whether the other page has to be made again."""
    intact: list[Meta] = []
    faults: list[
        tuple[int | None, DataFileDamagedError]
    ] = []  # with the number of the page's transaction, if it can be read
    for found in read_metas_apart(read_head(fd)):
        if isinstance(found, DataFileDamagedError):
            faults.append((None, found))
            continue
        try:
            check_roots(fd, found)
            intact.append(found)
        except DataFileDamagedError as error:
            faults.append((found.txn_id, error))
    if not intact:
        raise faults[0][1]
    newest = max(intact, key=lambda meta: meta.txn_id)
    # A commit that failed leaves a page with an earlier number and wrong roots: LMDB never follows them, and loses nothing.
    damaged = [error for number, error in faults if number is None or number >= newest.txn_id]
    # LMDB itself takes the other meta page without a word, and with it the state before the last commit.
    reasons: list[str] = []
    if newest.txn_id < mark.position:
        words = f"{data} ends with transaction {newest.txn_id}, and {mark.position} was durable"
        reasons.append(f"{words}: {faults[0][1]}" if faults else words)
    elif damaged and not (former in (Former.CLOSED, Former.KILLED) and newest.txn_id == mark.position):
        reasons.append(f"{data} is damaged {damaged[0]}: that may have been its newest state")
    return newest, reasons, len(intact) < META_PAGES


def _check_identity(fd: int, meta: Meta, data: str, bookie_id: str) -> None:
    """Refuses the file of another bookie: that is not damage. The record that says so is the first of all."""
    for key, value in Pages(fd, meta).records():
        if key == FORMAT_KEY and value != format_text(bookie_id):
            raise StorageIdentityError(
                f"{data} says {value.decode('ascii', 'replace')!r}, expected {format_text(bookie_id).decode()!r}",
                "Nothing was touched: put the right file there",
            )
        return
