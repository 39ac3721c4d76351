"""Copies of the state: they arrive whole or not at all, and a member takes one in place of all that it had (Q12)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.metastores.quorum import store as stores
from replog.metastores.quorum.copies import CopyInParts, StateCopy, copy_payload, page_payload
from replog.metastores.quorum.store import MemberStore


@given(st.dictionaries(st.binary(max_size=10), st.binary(max_size=700_000), max_size=6))
def test_copy_arrives_whole(rows: dict[bytes, bytes]) -> None:
    parts, sent = CopyInParts(), StateCopy.of(sorted(rows.items()))
    for place, page in enumerate(sent.pages):
        parts.page(page_payload(5, place, page))
    found = parts.message(copy_payload(5, len(sent.pages), b"message"))
    assert found is not None
    message, arrived = found
    assert (message, list(arrived.rows())) == (b"message", sorted(rows.items()))
    assert arrived.size_bytes >= sum(len(row) + len(value) for row, value in rows.items())


def test_copy_without_a_page_is_worth_nothing() -> None:
    sent = StateCopy.of((b"%d" % number, bytes(600_000)) for number in range(6))
    payloads = [page_payload(5, place, page) for place, page in enumerate(sent.pages)]
    assert len(payloads) == 3
    for left_out in range(3):
        parts = CopyInParts()
        for number, payload in enumerate(payloads):
            if number != left_out:
                parts.page(payload)
        assert parts.message(copy_payload(5, 3, b"message")) is None
    mixed = CopyInParts()
    mixed.page(payloads[0])
    mixed.page(page_payload(6, 1, sent.pages[1]))
    assert mixed.message(copy_payload(5, 2, b"message")) is None


@pytest.mark.parametrize(
    "page",
    [
        b"",
        struct.pack(">I", 2),
        struct.pack(">I", 0xFFFFFFFF) + bytes(8),
        struct.pack(">III", 2, 1, 1) + b"k",
        struct.pack(">III", 2, 1, 1) + b"kvv",
        struct.pack(">II", 1, 1) + b"k",
    ],
)
def test_page_with_wrong_sizes_is_refused(page: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a page of a copy"):
        CopyInParts().page(page_payload(5, 0, page))


def test_copy_takes_the_place_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it needs a larger map; and what stands beside the rows stays."""
    monkeypatch.setattr(stores, "_MAP_BYTES", 1 << 20)
    store = MemberStore(str(tmp_path))
    store.put_cluster("c1", None, "n1")
    store.write(None, {b"a": b"1", b"z": b"2"}, 1)
    rows = [(b"k%06d" % number, bytes(1000)) for number in range(5000)]
    store.replace(None, StateCopy.of(rows), 7)
    assert list(store.rows_from(b"")) == rows
    applied, state = store.state()
    assert (applied, list(state.rows())) == (7, rows)
    assert (store.name, store.cluster) == ("n1", "c1")
    store.replace(None, StateCopy(), 8)
    assert list(store.rows_from(b"")) == []
    store.close()


def test_rows_out_of_order_change_nothing(tmp_path: Path) -> None:
    """They would be lost without a word: LMDB appends what is greater than the last."""
    store = MemberStore(str(tmp_path))
    store.write(None, {b"a": b"1"}, 1)
    for wrong in ([(b"c", b""), (b"b", b"")], [(b"b", b"1"), (b"b", b"2")]):
        with pytest.raises(RemoteProtocolError, match="ascend"):
            store.replace(None, StateCopy.of(wrong), 7)
    assert list(store.state()[1].rows()) == [(b"a", b"1")]
    assert store.load().applied == 1
    store.write(None, {b"b": b"2"}, 2)
    assert list(store.rows_from(b"")) == [(b"a", b"1"), (b"b", b"2")]
    store.close()
