"""Objects of an archive: their bytes, which never change, and what is noticed of damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replog.errors import RemoteProtocolError
from replog.protocol.archived import (
    FOOTER_BYTES,
    ObjectIndex,
    ObjectName,
    covering,
    decode_index,
    index_bytes,
    pack,
)
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType

GOLDEN = Path(__file__).parent.parent / "formats" / "archive-object-v1.hex"
COPY = "9c02"


def batch(first: int, count: int = 2, stride: int = 1) -> Batch:
    return build(
        Digest(DigestType.CRC32C, 7, b"", ""),
        ledger_id=7,
        first_entry_id=first,
        stride=stride,
        payloads=[b"entry %d" % (first + stride * each) for each in range(count)],
        last_add_confirmed=first - 1,
        stamp=1,
        timestamp_ns=1_700_000_000_000_000_000,
        cumulative_length=8 * first,
    )


def index_of(data: bytes) -> ObjectIndex:
    return decode_index(data[-index_bytes(data[-FOOTER_BYTES:]) :], len(data))


def packed(*arguments: Any) -> tuple[ObjectName, bytes]:
    name, pieces = pack(*arguments)
    return name, b"".join(pieces)


def test_format_of_an_object_is_unchanged() -> None:
    name, data = packed(7, COPY, 0, 3, [batch(0), batch(2)])
    words = GOLDEN.read_text().split("\n", 1)
    assert str(name) == words[0]
    assert data == bytes.fromhex(words[1])
    assert str(name).startswith("ledgers/0000000000000000007/9c02/0000000000000000000-0000000000000000003-")
    assert ObjectName.parse(str(name)) == name == ObjectName(7, COPY, 0, 3, str(name)[-64:])


def test_each_entry_is_found_and_read_back_verbatim() -> None:
    batches = [batch(0), batch(2), batch(4, 3)]
    _, data = packed(7, COPY, 0, 6, batches)
    index = index_of(data)
    for entry_id in range(7):
        place = index.place_of(entry_id)
        assert place is not None
        (found,) = index.batches(place, place + 1, data[index.offsets[place] : index.offsets[place + 1]])
        assert found == next(each for each in batches if each.holds(entry_id))
    assert index.place_of(7) is None
    assert index.batches(0, 3, data[: index.offsets[3]]) == batches
    assert index.through(0, 0) == 1, "one batch at least"
    assert index.through(0, index.offsets[2]) == 2


def test_striped_entries_are_found_among_each_other() -> None:
    """Batches of three rotations, dealt out in turn (W1)."""
    batches = [batch(first, 2, 3) for first in (2, 0, 1, 6, 7, 8)]
    _, data = packed(7, COPY, 0, 11, batches)
    index = index_of(data)
    assert index.firsts == [0, 1, 2, 6, 7, 8]
    for entry_id in range(12):
        place = index.place_of(entry_id)
        assert place is not None
        assert entry_id in range(index.firsts[place], index.lasts[place] + 1, 3)


def test_every_flipped_byte_is_noticed() -> None:
    name, data = packed(7, COPY, 0, 3, [batch(0), batch(2)])
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(RemoteProtocolError):
            index_of(damaged).batches(0, 2, damaged[: index_of(data).offsets[2]])
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            index_of(data[:length])
    assert ObjectName.parse(f"{name}0") is None


def test_lacking_objects_are_found_by_their_names() -> None:
    names = [ObjectName(7, COPY, first, last, "") for first, last in ((4, 9), (0, 3), (12, 20))]
    assert covering(names, 0, 9) == 10
    assert covering(names, 2, 15) == 10
    assert covering(names, 12, 20) == 21
    assert covering([], 5, 6) == 5
