"""Bytes that Apache's own classes made: `java/Golden.java` prints `golden.txt`."""

from __future__ import annotations

from pathlib import Path

PATH = Path(__file__).parent / "golden.txt"


def golden() -> dict[str, str]:
    """The lines, by their names."""
    return dict(line.split(" ") for line in PATH.read_text().splitlines())


def golden_bytes(name: str) -> bytes:
    """The bytes of this name."""
    return bytes.fromhex(golden()[name])
