"""Ways to damage a file: one flipped bit, a truncation, or a function of the caller."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

DamageFile = Callable[[Path, random.Random], str | None]
Way = Callable[[Path], str | None]  # damages the file of this path and says how, or leaves it alone

_BLOCK_BYTES = 4096


def ways_to_damage(content: bytes, sample: int, chance: random.Random, damage: DamageFile | None) -> Iterator[Way]:
    """All ways for a file of this content: flips, truncations, and the function of the caller."""
    yield from ways_to_flip(content, sample, chance)
    for length in _offsets(content, max(1, sample // 4), chance):
        yield partial(_truncate, length)
    if damage is not None:
        for _ in range(sample):
            yield partial(_damage_by, damage, chance)


def ways_to_flip(content: bytes, sample: int, chance: random.Random) -> Iterator[Way]:
    """Ways that flip one bit each."""
    for offset in _offsets(content, sample, chance):
        yield partial(_flip, offset, 1 << chance.randrange(8))


def _offsets(content: bytes, count: int, chance: random.Random) -> list[int]:
    """Draw places in a file, half of them in blocks with data: much of a file may be preallocated zeros.

    If more than three are asked for, the first byte, the last one, and the last that is not zero are among them."""
    used = len(content.rstrip(b"\0"))
    blocks = [at for at in range(0, used, _BLOCK_BYTES) if content[at : at + _BLOCK_BYTES].strip(b"\0")]
    offsets = {0, max(0, used - 1), len(content) - 1} if content and count > 3 else set()
    while len(offsets) < min(count, len(content)):
        if blocks and chance.random() < 0.5:
            start = chance.choice(blocks)
            offsets.add(chance.randrange(start, min(start + _BLOCK_BYTES, used)))
        else:
            offsets.add(chance.randrange(len(content)))
    return sorted(offsets)


def _flip(offset: int, mask: int, path: Path) -> str | None:
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(1)
        if not before:
            return None  # a storage that has the file open has truncated it
        file.seek(offset)
        file.write(bytes((before[0] ^ mask,)))
    return f"byte {offset} was flipped from {before[0]:#04x} to {before[0] ^ mask:#04x}"


def _truncate(length: int, path: Path) -> str:
    with path.open("r+b") as file:
        file.truncate(length)
    return f"the file was truncated to {length} bytes"


def _damage_by(damage: DamageFile, chance: random.Random, path: Path) -> str | None:
    return damage(path, chance)
