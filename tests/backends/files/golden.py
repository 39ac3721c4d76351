"""Golden bytes as text: lines of 32 bytes in hexadecimal, and whole directories of such files."""

from __future__ import annotations

import itertools
from pathlib import Path

from replog.backends.disk import write_all
from replog.testing.disk import MemoryDisk

FORMATS = Path(__file__).parents[2] / "formats"


def as_hex(content: bytes | bytearray) -> str:
    """Lines of 32 bytes, without the zeros at the end; the same line again is counted."""
    lines = [content[at : at + 32].ljust(32, b"\0").hex() for at in range(0, len(content.rstrip(b"\0")), 32)]
    folded = [(line, sum(1 for _ in same)) for line, same in itertools.groupby(lines)]
    return "".join(f"{line} x{count}\n" if count > 1 else f"{line}\n" for line, count in folded)


def from_hex(text: str) -> bytes:
    pieces = []
    for line in text.splitlines():
        digits, _, count = line.partition(" x")
        pieces.append(bytes.fromhex(digits) * int(count or 1))
    return b"".join(pieces)


def files_as_hex(disk: MemoryDisk, root: str, leave_out: tuple[str, ...] = ("lock",)) -> str:
    """All files below a directory, each under a line with its path and length."""
    pieces = []
    for path in disk.paths():
        name = path.removeprefix(f"{root}/")
        if name != path and name not in leave_out:
            content = disk.content(path)
            pieces.append(f"== {name} {len(content)}\n{as_hex(content)}")
    return "".join(pieces)


def files_from_hex(text: str) -> dict[str, bytes]:
    """The files that `files_as_hex` wrote, by path."""
    files = {}
    for piece in text.split("== ")[1:]:
        head, _, lines = piece.partition("\n")
        name, _, size = head.rpartition(" ")
        files[name] = from_hex(lines)[: int(size)].ljust(int(size), b"\0")
    return files


def disk_with(files: dict[str, bytes], root: str = "/st") -> MemoryDisk:
    """A disk that has these files, durably, below a directory."""
    disk = MemoryDisk()
    for path in sorted({root, *(f"{root}/{name}".rpartition("/")[0] for name in files)}):
        disk.make_directory(path)
        disk.sync_directory(path.rpartition("/")[0] or "/")
    for name, content in files.items():
        path = f"{root}/{name}"
        fd = disk.open(path, create=True)
        if content:
            write_all(disk, fd, (content,), 0)
        disk.fdatasync(fd)
        disk.close(fd)
        disk.sync_directory(path.rpartition("/")[0])
    return disk


def crc32c_of(content: bytes, start: int = 0) -> int:
    """CRC-32C from its definition: nothing of the library is used. `start` is that of what is before."""
    checksum = start ^ 0xFFFFFFFF
    for byte in content:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]
