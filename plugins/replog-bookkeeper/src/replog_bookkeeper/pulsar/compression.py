"""Expanding what Pulsar's clients and brokers compressed. All kinds but ZLIB need the package `cramjam`.

Nothing is trusted: an output never gets longer than was announced, and what was announced is bounded by the caller.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

from replog.errors import CompressionUnavailableError
from replog_bookkeeper.pulsar.errors import MessageDamagedError, MessageTooLargeError

NAMES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")  # by their numbers


@cache
def _cramjam(kind: str) -> Any:
    try:
        import cramjam
    except ImportError as error:
        problem = f"{kind} needs the package cramjam: pip install 'replog-bookkeeper[pulsar]'; nothing was lost"
        raise CompressionUnavailableError(problem) from error
    return cramjam


def name_of(number: int) -> str:
    """The name of a kind of compression. Raises `MessageDamagedError` for an unknown number."""
    if not 0 <= number < len(NAMES):
        raise MessageDamagedError(f"its compression {number} is none of {', '.join(NAMES)}")
    return NAMES[number]


def expand(number: int, data: bytes, size_bytes: int, bytes_max: int) -> bytes:
    """The `size_bytes` that were compressed to `data`.

    Raises `MessageDamagedError`, `MessageTooLargeError`, `CompressionUnavailableError`."""
    kind = name_of(number)
    if kind == "NONE":
        return data
    if size_bytes < 0:
        raise MessageDamagedError(f"its size without its compression is {size_bytes}")
    if size_bytes > bytes_max:
        raise MessageTooLargeError(
            f"it has {size_bytes} bytes without its compression: message_bytes_max is {bytes_max}"
        )
    try:
        found = _inflated(data, size_bytes) if kind == "ZLIB" else _by_cramjam(kind, data, size_bytes)
    except (zlib.error, ValueError) as error:
        raise MessageDamagedError(f"its {kind} cannot be expanded: {error}") from error
    if len(found) != size_bytes:
        raise MessageDamagedError(f"its {kind} expands to {len(found)} bytes in place of {size_bytes}")
    return found


def _inflated(data: bytes, size_bytes: int) -> bytes:
    # One byte more, which tells a longer output. Pulsar flushes its streams, and does not end them: there is no checksum.
    return zlib.decompressobj().decompress(data, size_bytes + 1)


def _by_cramjam(kind: str, data: bytes, size_bytes: int) -> bytes:
    cramjam = _cramjam(kind)
    into = {
        "LZ4": cramjam.lz4.decompress_block_into,
        "ZSTD": cramjam.zstd.decompress_into,
        "SNAPPY": cramjam.snappy.decompress_raw_into,
    }[kind]
    found = bytearray(size_bytes)
    try:
        written = into(data, found)
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error
    return bytes(memoryview(found)[:written])
