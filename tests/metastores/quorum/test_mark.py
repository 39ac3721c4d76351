"""The durable mark of a member: a damaged one is not believed, whatever it says (Q11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from replog.metastores.quorum.mark import DurableMark
from replog.metastores.quorum.store import MemberStore


def test_last_position_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "mark")
    for before, position in ((None, 7), (7, 2**40)):
        mark = DurableMark(path)
        assert mark.position == before
        mark.put(position)
        mark.close()


@pytest.mark.parametrize("bit", range(12 * 8))
def test_flipped_bit_is_noticed(bit: int, tmp_path: Path) -> None:
    path = tmp_path / "mark"
    mark = DurableMark(str(path))
    mark.put(7)
    mark.close()
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    mark = DurableMark(str(path))
    assert mark.position is None
    mark.close()


def test_store_with_a_damaged_mark_has_lost(tmp_path: Path) -> None:
    store = MemberStore(str(tmp_path))
    store.put_name("first")
    store.close()
    store = MemberStore(str(tmp_path))
    assert not store.has_lost
    store.close()
    path = tmp_path / "durable-mark"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    store = MemberStore(str(tmp_path))
    assert store.has_lost
    store.close()
