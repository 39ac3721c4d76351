"""Golden bytes of the files storage, read a second time from their description in docs/reference/formats.md, without the library.

The library's own half is in tests/backends/files/test_format.py."""

from __future__ import annotations

import json
import struct

from tests.backends.files.golden import FORMATS, crc32c_of, files_from_hex, from_hex

IDENTITY = bytes.fromhex("01010101010141018101010101010101")


def golden(name: str, *, size: int = 0) -> bytes:
    """Zeros at the end are left out of the golden files."""
    return from_hex((FORMATS / f"files-storage-{name}.hex").read_text()).ljust(size, b"\0")


def read_header_page(data: bytes, magic: bytes, number: int) -> int:
    """Returns the epoch."""
    found, version, reserved, of_file, epoch, identity, checksum = struct.unpack_from("<8sIIQQ16sI", data)
    assert (found, version, reserved, of_file, identity) == (magic, 1, 0, number, IDENTITY)
    assert checksum == crc32c_of(data[:48])
    assert not any(data[52:4096])
    return int(epoch)


def payload_checksum(payload: bytes) -> int:
    """CRC32C of the last four bytes and the CRC32C of all before them."""
    return crc32c_of(payload[-4:] + struct.pack("<I", crc32c_of(payload[:-4])))


def read_records(data: bytes, number: int) -> list[tuple[int, int, int, int, int, bytes]]:
    """Type, flags, position, epoch, sequence and payload of each."""
    seed = crc32c_of(struct.pack("<Q", number) + IDENTITY)
    records = []
    at = 4096
    while data[at : at + 4] == b"rlgr":
        kind, flags, reserved, length, position, epoch, sequence, checksum, own = struct.unpack_from(
            "<BBHIIQQII", data, at + 4
        )
        assert reserved == 0
        assert own == crc32c_of(data[at : at + 36], seed)
        payload = data[at + 40 : at + 40 + length]
        assert checksum == payload_checksum(payload)
        records.append((kind, flags, position, epoch, sequence, payload))
        at += 40 + length
    return records


def test_journal() -> None:
    data = golden("v1-journal", size=64 << 10)
    first_epoch = read_header_page(data, b"rlogjrnl", 1)
    records = read_records(data, 1)
    assert [(kind, flags, position, sequence) for kind, flags, position, _, sequence, _ in records] == [
        (4, 0, 0, 1),
        (1, 0, 1, 1),
        (2, 0, 2, 1),
        (2, 1, 3, 1),
        (3, 0, 0, 2),
        (1, 1, 1, 2),
        (6, 1, 0, 3),
    ]
    assert records[0][3] == first_epoch
    assert {epoch for _, _, _, epoch, _, _ in records[1:]} == {struct.unpack("<Q", records[0][5])[0]}
    assert struct.unpack_from("<qqqqi", records[2][5]) == (7, 3, 0, 0, 3)
    assert records[2][5][36:39] == b"key"
    proof = struct.pack("<4sBBHqqq", b"rlac", 1, 1, 0, 7, 1, 0)
    assert records[2][5][39:] == proof + struct.pack("<I", crc32c_of(proof))
    assert struct.unpack("<qqqqi", records[3][5]) == (8, 5, -1, 6, -1)
    assert struct.unpack("<q", records[4][5]) == (9,)
    assert struct.unpack("<qqqqQ", records[6][5]) == (7, 1, 0, 5, 1)


def test_entry_log() -> None:
    data = golden("entry-log-v1", size=8192)
    epoch = read_header_page(data, b"rlogelog", 5)
    records = read_records(data, 5)
    assert [(kind, flags, position, sequence) for kind, flags, position, _, sequence, _ in records] == [
        (5, 0, 0, 0),
        (5, 0, 1, 0),
        (5, 1, 2, 0),
    ]
    assert {of_record for _, _, _, of_record, _, _ in records} == {epoch}
    assert [first_entry_ids(payload) for *_, payload in records] == [[(7, 1, 0), (7, 1, 2)], [(7, 2, 2)], [(8, 1, 0)]]


def first_entry_ids(run: bytes) -> list[tuple[int, int, int]]:
    """Ledger, stamp and first id of the batches of a run."""
    found = []
    at = 0
    while at < len(run):
        assert run[at : at + 4] == b"rlog"
        (size,) = struct.unpack_from("<I", run, at + 8)
        ledger_id, first, _, stamp = struct.unpack_from("<qqqq", run, at + 24)
        found.append((ledger_id, stamp, first))
        at += size
    assert at == len(run)
    return found


def read_index(data: bytes, kind: int, number: int) -> tuple[int, int, dict[tuple[int, int], list[tuple[int, ...]]]]:
    """The end of the log file, the switches, and of each section its batches' first and last ids, offsets, strides and sizes."""
    magic, version, of_kind, of_file, identity, end, switches, sections, directory_checksum, own = struct.unpack_from(
        "<8sIIQ16sQQIII", data
    )
    assert (magic, version, of_kind, of_file, identity) == (b"rlogindx", 1, kind, number, IDENTITY)
    assert own == crc32c_of(data[:64])
    assert directory_checksum == crc32c_of(data[72 : 72 + 64 * sections])
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    expected_start = 72 + 64 * sections
    for at in range(72, 72 + 64 * sections, 64):
        ledger, stamp, first, last, last_first, start, size, count, checksum = struct.unpack_from(
            "<qqqqqQQII", data, at
        )
        page = data[start : start + 36 * count]
        assert start == expected_start
        assert crc32c_of(page) == checksum
        columns = struct.unpack(f"<{count}q{count}q{count}Q{count}I{count}I{count}I", page)
        rows = list(zip(*(columns[count * each : count * (each + 1)] for each in range(6)), strict=True))
        assert [first, last, last_first] == [rows[0][0], max(row[1] for row in rows), rows[-1][0]]
        assert size == sum(row[4] for row in rows)
        found[ledger, stamp] = [row[:5] for row in rows]
        expected_start += 36 * count
    assert not any(data[expected_start:])
    return end, switches, found


def test_index() -> None:
    _, switches, sections = read_index(golden("index-v1"), 1, 3)
    assert switches == 3
    assert sections == {(7, 1): [(0, 1, 4136, 1, 128)], (7, 2): [(2, 2, 4496, 3, 164)], (8, 1): [(0, 4, 4304, 2, 152)]}


def test_index_of_an_entry_log() -> None:
    end, switches, sections = read_index(golden("entry-log-index-v1"), 2, 5)
    log = golden("entry-log-v1", size=end)
    assert switches == 3
    assert {key: [row[:2] for row in rows] for key, rows in sections.items()} == {
        (7, 1): [(0, 1), (2, 3)],
        (7, 2): [(2, 2)],
        (8, 1): [(0, 4)],
    }
    for (ledger_id, stamp), rows in sections.items():
        for first, _, offset, _, size in rows:
            assert first_entry_ids(log[offset : offset + size]) == [(ledger_id, stamp, first)]


def test_catalog() -> None:
    data = golden("catalog-v1")
    data = data[: len(data.rstrip(b"\0"))]
    magic, version, reserved, identity, *numbers = struct.unpack_from("<8sII16sQQQQQQQQQ", data)
    assert (magic, version, reserved, identity) == (b"rlogctlg", 1, 0, IDENTITY)
    assert numbers == [12, 6, 40, 44, 6, 2, 2, 3, 3]
    at = 104
    assert list(struct.iter_unpack("<IQQQ", data[at : at + 56])) == [(1, 3, 3, 9000), (2, 5, 4, 70_000)]
    at += 56
    assert list(struct.iter_unpack("<qq", data[at : at + 32])) == [(0, 6), (10, 11)]
    at += 32
    dropped = [(7, 1, 0, 5, 1), (7, 2, 3, 18, 3), (9, 1, 0, (1 << 63) - 1, 1)]
    assert list(struct.iter_unpack("<qqqqQ", data[at : at + 120])) == dropped
    at += 120
    for ledger in ((7, 3, 0, 2, 0, b"key", b"proof"), (8, 5, -1, -1, 6, None, b""), (9, 0, 4, 4, 0, b"", b"")):
        *marks, size, proof_size = struct.unpack_from("<qqqqqiI", data, at)
        at += 48
        key = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        assert (*marks, key, data[at : at + proof_size]) == ledger
        at += proof_size
    assert struct.unpack_from("<I", data, at) == (crc32c_of(data[:at]),)
    assert at + 4 == len(data), "the checksum must not end with a zero, else this test cuts it off"


def test_directories() -> None:
    inside = files_from_hex((FORMATS / "files-storage-v1-directory-inside.hex").read_text())
    elsewhere = files_from_hex((FORMATS / "files-storage-v1-directory-elsewhere.hex").read_text())
    assert json.loads(inside["st/storage.json"])["journal"] == "inside"
    assert json.loads(elsewhere["st/storage.json"])["journal"] == "elsewhere"
    cookie = json.loads(elsewhere["jn/journal.json"])
    assert cookie == {
        "format": "replog files journal",
        "version": 1,
        "bookie_id": json.loads(elsewhere["st/storage.json"])["bookie_id"],
    }
    assert {name.rpartition("/")[0] for name in inside} == {"st", "st/journal", "st/logs"}
    assert {name.rpartition("/")[0] for name in elsewhere} == {"st", "st/logs", "jn"}


def test_durable_mark() -> None:
    data = from_hex((FORMATS / "durable-mark-v1.hex").read_text()).ljust(8192, b"\0")
    for at, generation in ((0, 8), (4096, 7)):
        *fields, checksum = struct.unpack_from("<4sHHQQ16sqqII", data, at)
        assert fields == [b"rlgm", 1, 0, generation, 1000, IDENTITY, 30, 20, 5]
        assert checksum == crc32c_of(data[at : at + 60])
        assert not any(data[at + 64 : at + 4096])


def test_doubt() -> None:
    line, checksum, end = (FORMATS / "doubt-v1.txt").read_bytes().split(b"\n")
    assert (checksum, end) == (b"crc32c %08x" % crc32c_of(line), b"")
    assert json.loads(line) == {
        "format": "replog doubt",
        "version": 1,
        "identity": IDENTITY.hex(),
        "doubted_below": 30,
        "lost_below": 20,
        "fences_lost_below": 25,
        "fenced_again": [7, 24],
        "accounted": 999,
        "accounted_names": ["000000000002.log"],
        "reasons": ["000000000001.journal is damaged at 4096"],
    }
