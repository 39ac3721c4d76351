"""What a bookie last saw of its metastore: kept as it was, by each storage; and the file's format (B6a)."""

from __future__ import annotations

from pathlib import Path

import pytest

from replog.abc import Sighting
from replog.backends.disk import Disk
from replog.backends.sightings import SIGHTING_FILE, pack_sighting, read_sighting, unpack_sighting, write_sighting
from replog.config import BackendURL
from replog.registry import Registry

BOOKIE = "bookie-00112233445566778899aabbccddeeff"
SEEN = Sighting("ffeeddccbbaa99887766554433221100", 17, 4711, 23)
GOLDEN = Path(__file__).parent.parent / "formats" / "metastore-seen-v1.txt"


def test_format_is_unchanged() -> None:
    assert pack_sighting(BOOKIE, SEEN) == GOLDEN.read_bytes()
    assert unpack_sighting(BOOKIE, GOLDEN.read_bytes()) == SEEN


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other bookie", "missing"])
def test_damaged_file_says_nothing(damage: str, tmp_path: Path) -> None:
    data = bytearray(GOLDEN.read_bytes())
    if damage == "flipped":
        data[20] ^= 1
    elif damage == "cut":
        del data[-5:]
    elif damage == "empty":
        data.clear()
    if damage != "missing":
        (tmp_path / SIGHTING_FILE).write_bytes(data)
    bookie_id = "bookie-" + "f" * 32 if damage == "other bookie" else BOOKIE
    assert read_sighting(Disk(), str(tmp_path), bookie_id) == Sighting()


def test_file_is_replaced(tmp_path: Path) -> None:
    for times in (1, 2):
        write_sighting(Disk(), str(tmp_path), BOOKIE, Sighting("token", times, times))
    assert read_sighting(Disk(), str(tmp_path), BOOKIE) == Sighting("token", 2, 2)
    assert [each.name for each in tmp_path.iterdir()] == [SIGHTING_FILE]


@pytest.mark.parametrize("kind", ["files", "lmdb", "memory"])
def test_storage_keeps_its_sightings(kind: str, tmp_path: Path) -> None:
    url = BackendURL(kind, "kept" if kind == "memory" else str(tmp_path / "bookie"))
    registry = Registry(load_installed=False)
    storage = registry.open_storage(url)
    assert storage.sighting() == Sighting()
    storage.keep_sighting(SEEN)
    storage.close()
    storage = registry.open_storage(url)
    assert storage.sighting() == SEEN
    storage.close()
