"""Ways to damage a file: each does one thing, at places that are worth it."""

import random
from pathlib import Path

import pytest

from replog.testing.storage_conformance.damaging import ways_to_damage, ways_to_flip

CONTENT = bytes(5000) + b"something" + bytes(20_000) + b"else" + bytes(100_000)


def test_flip_changes_one_bit_and_names_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    offsets = []
    for way in ways_to_flip(CONTENT, 40, random.Random(1)):
        file.write_bytes(CONTENT)
        words = way(file)
        found = file.read_bytes()
        (offset,) = [at for at, byte in enumerate(found) if byte != CONTENT[at]]
        assert (found[offset] ^ CONTENT[offset]).bit_count() == 1
        assert words == f"byte {offset} was flipped from {CONTENT[offset]:#04x} to {found[offset]:#04x}"
        offsets.append(offset)
    assert len(set(offsets)) == 40
    assert {0, 25_012, len(CONTENT) - 1} <= set(offsets)
    near = [offset for offset in offsets if 4096 <= offset < 8192 or 24_576 <= offset <= 25_012]
    assert len(near) > 10  # though these are one part in thirty


def test_shortened_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert [way(tmp_path / "file") for way in ways_to_flip(b"longer", 3, random.Random(1))] == [None] * 3
    assert (tmp_path / "file").read_bytes() == b""


def test_truncations_and_ways_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    lengths, words = [], []
    for way in ways_to_damage(CONTENT, 16, random.Random(2), lambda path, chance: f"{path.name} {chance.random() < 2}"):
        file.write_bytes(CONTENT)
        words.append(way(file))
        if len(file.read_bytes()) < len(CONTENT):
            assert words[-1] == f"the file was truncated to {len(file.read_bytes())} bytes"
            lengths.append(len(file.read_bytes()))
    assert len(lengths) == 4
    assert 0 in lengths
    assert words.count("file True") == 16
    assert len(words) == 16 + 4 + 16


@pytest.mark.parametrize("content", [b"", b"x", bytes(3)])
def test_small_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    words = [way(tmp_path / "file") for way in ways_to_flip(content, 16, random.Random(3))]
    assert len(words) == len(content)
    assert None not in words
