"""Compression of a batch's body: its offsets and payloads as one zstd frame (format 1, flag 0x0100 of the batch).

Only a writer compresses, and only a reader expands: what lies between (bookies, repair, compaction) copies the stored bytes
and needs no package. `expand` trusts nothing: neither the output nor the window of a frame exceeds what a batch may have.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from replog.errors import CompressionUnavailableError, RemoteProtocolError

ZSTD = "zstd"
COMPRESSIONS = ("none", ZSTD)

# Twice as fast as the library's own default, 3, and on text and JSON at most a tenth larger.
_LEVEL = 1
_PLAIN_BYTES_MAX = 128  # of bodies that are not worth a try: the header alone is half as long
_SAVED_SHARE = 8  # a body is compressed if that saves an eighth of it; less is not worth a reader's time
_PASSED_MAX = 64  # bodies that are passed over at most, after others did not shrink
_WINDOW_LOG_MAX = 25  # of 2 to the power of this many bytes: as long as the longest batch


@cache
def _zstd() -> Any:
    """The module that compresses: the standard library's from Python 3.14, else `backports.zstd`."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise CompressionUnavailableError(
            "zstd is not installed here: pip install 'replog[zstd]'; nothing was written or lost"
        ) from error
    return zstd


class Compressor:
    """Compresses the bodies of one writer's batches, where that saves something.

    After bodies that did not shrink it passes over the next ones untried: 1, then 2, 4, ... up to 64, so that data that is
    compressed already costs a writer nearly nothing. Raises `CompressionUnavailableError` if the package is missing."""

    __slots__ = ("_compressor", "_frame", "_passed", "_to_pass")

    def __init__(self) -> None:
        zstd = _zstd()
        self._compressor = zstd.ZstdCompressor(level=_LEVEL)
        self._frame = zstd.ZstdCompressor.FLUSH_FRAME
        self._passed = 0
        self._to_pass = 0

    def compress(self, body: bytes | memoryview) -> bytes | None:
        """The body as one frame; None if it should be stored uncompressed."""
        assert 0 <= self._passed <= self._to_pass <= _PASSED_MAX, "no more is passed over than was decided"
        size_bytes = len(body)
        if size_bytes <= _PLAIN_BYTES_MAX:
            return None
        if self._passed < self._to_pass:
            self._passed += 1
            return None
        self._passed = 0
        frame: bytes = self._compressor.compress(body, mode=self._frame)
        if len(frame) > size_bytes - size_bytes // _SAVED_SHARE:
            self._to_pass = min(2 * self._to_pass or 1, _PASSED_MAX)
            return None
        self._to_pass = 0
        return frame


def compressor_for(compression: str) -> Compressor | None:
    """The compressor for a writer with this option; None for "none"."""
    assert compression in COMPRESSIONS, "options were checked"
    return Compressor() if compression == ZSTD else None


def expand(frame: bytes | memoryview, size_bytes: int) -> bytes:
    """The body of this size that a frame holds. Raises `RemoteProtocolError` if it holds anything else: then the writer was
    broken or hostile. Never takes more memory than the size that is declared, and a window of 32 MiB."""
    assert size_bytes >= 0, "a header's field has no sign"
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
    try:
        # One byte more than there may be: only then does the end of the frame show that nothing follows.
        body: bytes = decompressor.decompress(frame, max_length=size_bytes + 1)
    except zstd.ZstdError as error:
        raise RemoteProtocolError(f"a compressed batch that zstd does not read: {error}") from error
    if len(body) != size_bytes or not decompressor.eof or decompressor.unused_data:
        raise RemoteProtocolError(f"a compressed batch that does not expand to the {size_bytes} bytes that it declares")
    return body
