"""A member's disk: rows are read in pieces, which are as large as what is wanted of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from replog.metastores.quorum import store as store_module
from replog.metastores.quorum.store import MemberStore


def test_rows_come_whole_and_in_order(tmp_path: Path) -> None:
    store = MemberStore(str(tmp_path))
    rows: dict[bytes, bytes | None] = {b"%06d" % number: bytes(number % 7) for number in range(3000)}
    rows |= {b"1%05d" % number: bytes(400_000) for number in range(6)}
    store.write(None, rows, 1)
    assert list(store.rows_from(b"")) == sorted(rows.items())
    for first in (b"000999", b"000999x", b"100003", b"2"):
        assert [row for row, _ in store.rows_from(first)] == [row for row in sorted(rows) if row >= first]
    store.close()


def test_one_row_is_read_for_one_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many look for the next row only: a listing of a directory of directories, and what is to be forgotten."""
    store = MemberStore(str(tmp_path))
    store.write(None, {b"%06d" % number: b"" for number in range(1000)}, 1)
    read: list[bytes] = []
    whole = store_module._from

    def counted(transaction: lmdb.Transaction, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row, value in whole(transaction, start, prefix):
            read.append(row)
            yield row, value

    monkeypatch.setattr(store_module, "_from", counted)
    assert next(store.rows_from(b"000500")) == (b"000500", b"")
    assert len(read) == 1
    store.close()


def test_write_with_room_for_a_part_gives_up_the_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q18. LMDB reports it as EIO, like a broken disk: the room that is left tells them apart."""
    store = MemberStore(str(tmp_path))
    advance, failures = store._advance, [True]

    def failing(transaction: lmdb.Transaction) -> None:
        advance(transaction)
        if failures.pop():
            error = lmdb.Error("mdb_txn_commit: Input/output error")
            error.code = errno.EIO  # type: ignore[misc]
            raise error

    monkeypatch.setattr(store, "_advance", failing)
    monkeypatch.setattr(store_module, "free_bytes_at", lambda path: 1 << 30)
    with pytest.raises(lmdb.Error):
        store.write(None, {b"a": b"1"}, 1)
    assert (store.is_short, store.get(b"a")) == (False, None)
    failures[:] = [False, True]
    monkeypatch.setattr(store_module, "free_bytes_at", lambda path: 4096)
    store.write(None, {b"a": b"1"}, 1)
    assert (store.is_short, store.get(b"a")) == (True, b"1")
    store.close()
