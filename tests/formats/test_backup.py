"""Golden bytes of back-ups: those that were written once can be read, and are written the same."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from replog.backup.format import (
    Block,
    LedgerFile,
    LedgerFileWriter,
    LedgerHead,
    LogInBackup,
    Manifest,
    SavedSegment,
    decode_manifest,
    encode_manifest,
)
from replog.protocol.model import Position

HERE = Path(__file__).parent
LEDGER = HERE / "backup-ledger-v1.bin"
MANIFEST = HERE / "backup-manifest-v1.json"
HEAD = LedgerHead(17, "c0ffee", 1763500000000, 3, 3, 3, 2, "crc32c", False, {"log": "orders/☃"})
BLOCKS = [
    Block(0, 1763500000000000001, [b"zero", b"", b"two"]),
    Block(3, 1763500000000000002, [b"\0three"]),
]


def test_a_ledger_file_has_its_golden_bytes() -> None:
    file = io.BytesIO()
    writer = LedgerFileWriter(file, HEAD)
    for block in BLOCKS:
        writer.add(block)
    assert writer.end() == hashlib.sha256(LEDGER.read_bytes()).hexdigest()
    assert file.getvalue() == LEDGER.read_bytes()


def test_the_golden_ledger_file_is_read() -> None:
    with LEDGER.open("rb") as file:
        ledger = LedgerFile(LEDGER, file)
        assert (ledger.head, list(ledger.blocks())) == (HEAD, BLOCKS)


def test_a_manifest_has_its_golden_bytes() -> None:
    data = LEDGER.read_bytes()
    segment = SavedSegment(4, 17, len(data), hashlib.sha256(data).hexdigest())
    log = LogInBackup((segment,), 4, 2, Position(3, 7), {"owner": "me"}, {"billing ☃": Position(4, 2)})
    manifest = Manifest(1763600000000, {"orders/☃": log, "empty": LogInBackup(())})
    assert encode_manifest(manifest) == MANIFEST.read_bytes()
    assert decode_manifest(MANIFEST, MANIFEST.read_bytes()) == manifest
    body, checksum, _ = MANIFEST.read_bytes().split(b"\n")
    assert hashlib.sha256(body + b"\n").hexdigest().encode() == checksum, "as the page says"
